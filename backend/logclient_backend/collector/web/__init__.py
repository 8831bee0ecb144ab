"""The collector's HTTP API: what is stored, as strict JSON, and as pages of records for those who read all of it.

==================  ===============================================================================
app.py              the application: `make_app(Backing(...))`
uvicorn_server.py   uvicorn, given connections that the acceptor has accepted
context.py          what the API stands on: the store, tokens, and what the process around it knows
origin_check.py     before anything else: foreign hosts and origins are refused, headers are set
access.py           who may ask, and whether that still holds while an answer lasts
session.py          login and logout of browsers; session_cookie.py: their cookie
parameters.py       what may be asked, and its limits
run_filters.py      parameters that choose runs
strict_query.py     a parameter that there is not is refused
responses.py        what is answered: JSON, errors, pages
response_models.py  what answers look like, for /openapi.json; chart_models.py: those for charts
listing.py          runs: list, one, documents, config, summary, delete
groups.py           runs by a value: how many, in which states, mean and range of columns
columns.py          keys that runs of a list have values under
values.py           keys, series, buckets, last values
media.py            media values: references, and their bytes
bands.py            one key of several runs as mean, range and quantiles
many_runs.py        configs, extremes and series of many runs in one request
pairs.py            a series over the values of another key
curves.py           buckets of many series at once
marks.py            where records are missing, and where attempts begin
stream.py           server-sent events: what is new; live.py finds it, live_runs.py of the list of runs,
                    events.py writes it
records.py          contents, pages of records, export
console.py          what the program printed, line by line
health.py           /healthz, /readyz, /metrics
docs_page.py        /docs, without a script
==================  ===============================================================================

A run is named by the parameter `run`, never by a part of the path: ids hold `/`, `..` and `%`, which proxies, browsers
and frameworks decode, join and fold in paths, each in its own way. A query string is decoded once, by one rule.
"""
