"""Notebooks and interactive shells: cells that are run again (`rerun_cell.py`), and what a run shows (`card.py`)."""
