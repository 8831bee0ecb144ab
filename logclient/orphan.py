"""Starts a program that is no child of this process, not even for a moment.

Runs in the training process, at `init` (and in the first `log()` of a forked child when no agent lives).

A child that ends makes itself known: by SIGCHLD to a handler of the user's, in whatever thread, and to an `os.wait()`
that waits for any. So the process in between, which starts the program and ends, is made with an exit signal of none:
the kernel shows such a one to nobody who does not ask for it by name. It runs nothing but `system` of the C library,
sharing our memory while this thread stands still, as `posix_spawn` does.

Where that cannot be had (no ctypes, no shell, another kernel) the caller does without.
"""

from __future__ import annotations

import mmap
import os
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals  # type: ignore[import-not-found]

from . import stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_SHELL = "/bin/sh"  # what `system` takes
_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000  # linux/sched.h; the lowest byte is the exit signal
_WAIT_FOR_ALL = 0x40000000  # linux/wait.h: __WALL
_STACK_BYTES = 256 << 10


def start(
    words: list[str],
    *,
    dropped: Iterable[str],
    added: dict[str, str],
    end: str,
    keep_stderr_as: int = 0,
    tell_pid: str = "",
) -> bool:
    """Start the program with null streams; False where that is impossible, and nothing was done.

    Its environment is ours less `dropped` plus `added`. When it has ended, the file `end` holds a line with its
    exit code. With `keep_stderr_as` it has our standard error under that number. All signals are blocked in it.
    Its parent lives as long as it does, and becomes the child of whoever gets orphans: its PID is left in the file
    `tell_pid`, if there is to be one.
    """
    kept = f"{keep_stderr_as}>&2 " if keep_stderr_as else ""
    given = " ".join(f"{name}={_quoted(value)}" for name, value in added.items())
    script = (
        f"umask 077; unset {' '.join(dropped)}; export {given}; "
        f"{{ {' '.join(map(_quoted, words))}; echo $? >{_quoted(end)}; }} {kept}</dev/null >/dev/null 2>&1 &"
    )
    if tell_pid:
        script += f" {{ echo $! >{_quoted(tell_pid)}; }} 2>/dev/null"
    return _system(os.fsencode(script))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _system(script: bytes) -> bool:
    """`system(script)` in a process that nobody sees."""
    if b"\0" in script or not os.access(_SHELL, os.X_OK):
        return False
    try:
        ctypes = stdlib.load("ctypes")
        library = ctypes.CDLL(None)
        clone, system = library.clone, ctypes.cast(library.system, ctypes.c_void_p)
    except (ImportError, OSError, AttributeError):
        return False
    clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    clone.restype = ctypes.c_int
    text = ctypes.create_string_buffer(script)
    stack = mmap.mmap(-1, _STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + _STACK_BYTES & ~0xFF
    mask = pthread_sigmask(SIG_BLOCK, valid_signals())  # a handler of the user's must not run in that process
    try:
        process = clone(system, top, _CLONE_VM | _CLONE_VFORK, ctypes.addressof(text))
        if process <= 0:
            return False
        os.waitpid(process, _WAIT_FOR_ALL)
    except ChildProcessError:  # somebody asked for it by name
        pass
    finally:
        pthread_sigmask(SIG_SETMASK, mask)
    return True
