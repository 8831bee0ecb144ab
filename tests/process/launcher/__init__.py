"""Tests of launchers: torchrun, MPI, SLURM, `logclient.launch`, and which run each process gets."""
