"""A run as one HTML file that holds all it shows, for somebody without logclient and without access to the collector.

No script: curves are drawn as SVG when the file is written. The policy in it lets nothing run and nothing load, so a
hostile run can do nothing on the machine of whoever opens it.

- `page.py`: the document, section by section;
- `chart.py`, `histogram.py`: one curve, one histogram as SVG;
- `media.py`, `table.py`: media values, and a table of them with its images;
- `console.py`, `variables.py`: captured output, environment variables;
- `elements.py`: tables of facts, numbers and times;
- `style.py`: its one style sheet.
"""
