"""Files mapped without a descriptor that stays: an agent under a low limit of open files has few.

Before Python 3.13 `mmap` keeps a duplicate of the descriptor as long as the mapping lives. Here anonymous memory is
mapped, and the file over it: the object unmaps what is at its address, whatever that is by then.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

_MAP_FIXED = 0x10  # linux/mman.h; not in the mmap module
_FAILED = ctypes.c_void_p(-1).value


def _system_mmap() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).mmap
    except (OSError, AttributeError):
        return None
    found.restype = ctypes.c_void_p
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    return found


_mmap = _system_mmap()


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map the first `size` bytes, shared and writable; `fd` may be closed. Raises OSError."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    if _mmap is None:
        return mmap.mmap(fd, size)
    made = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(made))
    how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED
    if _mmap(address, size, *how, fd, 0) in (None, _FAILED):
        number = ctypes.get_errno()
        made.close()
        raise OSError(number, os.strerror(number))
    return made
