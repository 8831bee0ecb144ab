"""Launchers and ranks: which launch this process belongs to, its ancestors, and `logclient.launch`.

==============  ==========================================
`launchers.py`  the launcher, by its environment variables
`ancestry.py`   ancestors of this process in /proc
`parents.py`    the live run of an ancestor
`ranks.py`      `logclient.launch`
`pickling.py`   pickles what goes to a rank and comes back
==============  ==========================================
"""
