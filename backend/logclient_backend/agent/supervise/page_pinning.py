"""Makes the agent's code resident, so that a frozen disk under the interpreter cannot stop a restart.

Runs in the supervisor, before its first fork. Everything that workers import or open lazily is forced here, and what
would read source files to tell of an exception is replaced.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import threading
import time
import warnings

import zstandard

from logclient.config import fail_points
from logclient.shm.shm_dir import folder_name

from ... import failpoint
from ...wal.codec import Codec

_MCL_CURRENT = 1
_NICE = 5
_OOM_SCORE = "500"


def prepare() -> None:
    """Lower our priority, arm fail points, load what is loaded late."""
    _be_modest()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a few for each process that logs
    failpoint.arm(fail_points())
    warnings.simplefilter("ignore")
    sys.excepthook = sys.unraisablehook = threading.excepthook = _ignore
    # each of these opens a file or imports a module when it is called first
    time.gmtime()
    folder_name("Not Harmless")
    json.loads(json.dumps({"text": "\u00e9"}))
    os.strerror(5).encode("utf-8", "backslashreplace")
    zstandard.ZstdDecompressor().decompress(zstandard.ZstdCompressor().compress(b"logclient"))
    Codec(dense=True)


def lock_pages() -> bool:
    """Keep what is mapped in memory; False where we may not. Opens nothing."""
    return bool(ctypes.CDLL(None).mlockall(_MCL_CURRENT) == 0)


def read_mapped_files() -> None:
    """Read mapped pages once where they cannot be locked: they usually stay. Only before a disk may be frozen."""
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/")}
    for path in sorted(paths):
        if not path.startswith("/") or path.startswith("/dev/"):
            continue
        try:
            with open(path, "rb") as mapped:
                while mapped.read(1 << 20):
                    pass
        except OSError:
            continue


def _ignore(*_: object) -> None:
    pass


def _be_modest() -> None:
    try:
        os.nice(max(0, _NICE - os.nice(0)))
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)
    except OSError:
        pass
