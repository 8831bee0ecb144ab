"""Run by `tools/apart.py jax`, in an environment with JAX; in any other there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]
