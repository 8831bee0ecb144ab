"""Run by `tools/apart.py xla`, in an environment with torch_xla; in any other there is nothing to collect."""

import os
import warnings
from importlib.util import find_spec

if find_spec("torch_xla"):
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ.setdefault("CPU_NUM_DEVICES", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a torch with CUDA that finds none
        import torch_xla  # noqa: F401
else:
    collect_ignore_glob = ["test_*.py"]
