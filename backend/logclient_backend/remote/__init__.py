"""Runs of a collector as local readers see them: over its HTTP API, through the code that reads folders.

=============  ======================================================================================
access.py      which server is meant, and with which token
server.py      questions over HTTP: time limits, retries, proxies, errors in sentences
source.py      runs in lists, and which of them somebody means
runs.py        one run: its nodes' documents, its records
many_runs.py   questions about many runs in one request
contents.py    what is stored of it, for `logclient show`
follow.py      what comes, as it comes
=============  ======================================================================================
"""
