"""Environment of a run's program: commit, packages, machine, command line and variables, read from outside.

Runs in children of the agent, each with a deadline (`collect.py`); the program itself does nothing.

`masking.py`    keeps secrets out of command lines, variables and addresses
`program.py`    command line, folder and variables, from /proc
`git.py`        commit, branch, remote, and whether files differ; runs nothing that a repository names
`packages.py`   names and versions of the packages on the program's path
`machine.py`    processors, memory, system, GPUs
`collect.py`    all of it, within its limits
"""
