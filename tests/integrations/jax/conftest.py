"""Run by `tools/apart.py jax`, in an environment with JAX; in any other there is nothing to collect."""

import os
from importlib.util import find_spec

if find_spec("jax"):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
else:
    collect_ignore_glob = ["test_*.py"]
