"""Launchers and ranks: which launch this process belongs to, its ancestors, and `logclient.launch`.

=======================  ==========================================
`launcher_variables.py`  the launcher, by its environment variables
`ancestry.py`            ancestors of this process in /proc
`parent_run.py`          the live run of an ancestor
`launch.py`              `logclient.launch`
`pickling.py`            pickles what goes to a rank and comes back
=======================  ==========================================
"""
