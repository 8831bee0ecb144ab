"""Starts an agent, and reports on one that lives.

===================  ======================================================
`agent.py`           does an agent live, how to start one, what it reports
`starting.py`        starts its first process and waits for the answer
`interpreter.py`     finds the Python that may run it
`frozen_program.py`  the second entry of a frozen program
`detached.py`        starts a program that is no child of this process
`reap.py`            reaps orphans of ours that became our children
`lifetime.py`        does the agent end with the trainer here?
`agent_for_fork.py`  agents for forked children that log for the first time
===================  ======================================================
"""
