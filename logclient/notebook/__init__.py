"""Notebooks and interactive shells: cells that are run again (`notebook.py`), and what a run shows (`card.py`)."""
