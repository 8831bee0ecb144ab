"""Makes the agent's code resident, so that a frozen disk under the interpreter cannot stop a restart.

Runs once in the supervisor, before its first fork. Everything that workers import or open lazily is forced here.
"""

from __future__ import annotations

import ctypes
import encodings.idna
import encodings.latin_1
import encodings.utf_8
import json.encoder
import os

import zstandard

from .. import failpoint
from ..wal import reader, repair

_MCL_CURRENT = 1
_LAZY = (encodings.idna, encodings.latin_1, encodings.utf_8, json.encoder, zstandard, reader, repair)


def prepare() -> bool:
    """Lower our priority, arm fail points, lock or at least read the pages; True if they are locked."""
    _be_modest()
    from logclient.config import fail_points

    failpoint.arm(fail_points())
    zstandard.ZstdDecompressor().decompress(zstandard.ZstdCompressor().compress(b"logclient"))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT) == 0:
        return True
    _read_mapped_files()
    return False


def _be_modest() -> None:
    try:
        os.nice(5)
    except OSError:
        pass
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _read_mapped_files() -> None:
    """Without the right to lock: bring the files into the page cache, where they usually stay."""
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
