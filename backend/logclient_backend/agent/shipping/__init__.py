"""Ships what is stored to a collector, in a process of its own.

====================  ==================================================================
`ship_supervisor.py`  in the supervisor: keeps the ship process running
`ship_process.py`     the ship process
`ship_status.py`      in the worker: progress of the ship process
====================  ==================================================================
"""
