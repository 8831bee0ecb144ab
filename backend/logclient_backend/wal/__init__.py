"""The durable log: bytes, files and records; no rings, no network, no runs.

===================  ====================================================================================
segment.py           the format, drawn; encoder of one segment
codec.py             records <-> bytes of one block
scan.py              reads one segment: what checks, what is damaged, where the valid part ends
coverage.py seqs.py  what a segment or folder holds, per stream, as sets of seqs; the sealed footer
writer.py            the open segment and its copy in the run folder
seal.py              open segment -> sealed segment
reader.py dedup.py   a folder of segments, once or followed; what somebody has already
trim.py repair.py    the disk budget; verify, dump, repair
documents.py         config, summary, state: kept whole, newest wins
files.py             the seam to the file system
whole.py             files that get their name once they are whole and past an fsync
===================  ====================================================================================
"""
