"""Runs as readers see them: found, merged over their nodes, put in one order, drawn, taken out and in again.

Between the durable log (`wal/`) and whoever shows runs (`cli/`). Only reads, but for `importer.py`.

=============  =========================================================================
node.py        one node's folder: its documents, parsed and checked
document_head.py  of a node's documents as bytes: which is newer, whether they are closed
live.py        shm directories on this host: which processes live, what is not yet on disk
source.py      a folder or a server as one protocol, and the folder behind it
folder.py      which runs a folder holds, and which of them somebody means
state.py       how a run is: running, finished, failed, preempted, killed, terminated, replaced or lost
view.py        one run over all its nodes and attempts, from documents alone
order.py       its records in the canonical order, in bounded memory, wherever they lie
points.py      read from the segments of folders
decoded.py     kept for many questions about single keys
paged.py       read page by page, from a store or a server
follow.py      what comes, as it comes
contents.py    what is stored: exact counts, gaps, last values, curves
curve.py       a curve as text
strict.py      any document as strict JSON, and back
formats.py     points as lines or tables: csv, jsonl, parquet
export.py      a run out: points and `run.json`
importer.py    and in again
=============  =========================================================================
"""
