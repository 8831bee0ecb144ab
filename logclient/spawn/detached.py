"""Starts a program that is no child of this process, not even for a moment.

Runs in the training process, at `init` (and in the first `log()` of a forked child when no agent lives).

A child that ends makes itself known: by SIGCHLD to a handler of the user's, in whatever thread, and to an `os.wait()`
that waits for any. So the process in between, which starts the program and ends, is made with an exit signal of none:
the kernel shows such a one to nobody who does not ask for it by name. It runs two functions of the C library,
`posix_spawn` and `_exit`, sharing our memory while this thread stands still, as `posix_spawn` itself does.

`clone` runs a function of one argument. `setcontext` is one, and a context names any function and its arguments
(`makecontext`), and the context to go on with when that returns. No shell is involved: nothing of one reaches the
user's terminal, and neither the command nor the environment is limited to what fits one argument.

Where that cannot be had (no ctypes, a C library without contexts, another kernel) the caller does without.
"""

from __future__ import annotations

import errno
import mmap
import os
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals  # type: ignore[import-not-found]

from ..guest import stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000  # linux/sched.h; the lowest byte is the exit signal
_WAIT_FOR_ALL = 0x40000000  # linux/wait.h: __WALL
_STACK_BYTES = 64 << 10  # of each context; twice that for `clone` itself
_CONTEXT_BYTES = 4096  # ucontext_t takes 784 to 968, by machine
_LINK, _STACK, _STACK_SIZE = 1, 2, 4  # words of ucontext_t: uc_link, uc_stack.ss_sp, uc_stack.ss_size
_ACTIONS_BYTES = _ATTRIBUTES_BYTES = _SET_BYTES = 512  # glibc: 80, 336 and 128
_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80  # spawn.h
_NO_PID = -1


def start(words: list[str], environment: dict[str, str], streams: dict[int, int]) -> int:
    """Start the program in a session of its own, with signals as they are by default; its PID, 0 where that is
    impossible and nothing was done.

    Streams 0 to 2 are /dev/null, except for those in `streams`: number there -> descriptor here. Raises OSError
    where the program cannot be started.
    """
    if not os.access(words[0], os.X_OK):
        number = errno.EACCES if os.path.exists(words[0]) else errno.ENOENT
        raise OSError(number, os.strerror(number), words[0])
    try:
        ctypes = stdlib.load("ctypes")
        library = ctypes.CDLL(None)
        clone, setcontext = library.clone, ctypes.cast(library.setcontext, ctypes.c_void_p)
        task = _Task(ctypes, library, words, environment, streams)
    except (ImportError, OSError, AttributeError, ValueError):
        return 0
    clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    clone.restype = ctypes.c_int
    stack = mmap.mmap(-1, 4 * _STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    bottom = ctypes.addressof(ctypes.c_char.from_buffer(stack))
    mask = pthread_sigmask(SIG_BLOCK, valid_signals())  # a handler of the user's must not run in that process
    try:
        first = task.contexts(bottom)
        process = clone(setcontext, bottom + 4 * _STACK_BYTES & ~0xFF, _CLONE_VM | _CLONE_VFORK, first)
        if process <= 0:
            return 0
        try:
            os.waitpid(process, _WAIT_FOR_ALL)
        except ChildProcessError:  # somebody asked for it by name
            pass
    finally:
        pthread_sigmask(SIG_SETMASK, mask)
    if task.pid.value == _NO_PID:
        raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), words[0])
    return int(task.pid.value)


class _Task:
    """The arguments of `posix_spawn`, kept until it has run."""

    def __init__(
        self,
        ctypes: Any,
        library: Any,
        words: list[str],
        environment: dict[str, str],
        streams: dict[int, int],
    ) -> None:
        """Raises AttributeError where the C library lacks a function, ValueError for a word with a zero byte."""
        self._ctypes, self._library = ctypes, library
        self._functions = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in ("posix_spawn", "_exit")
        ]
        self._getcontext, self._makecontext = library.getcontext, library.makecontext
        self.pid = ctypes.c_int(_NO_PID)
        self._path = ctypes.create_string_buffer(os.fsencode(words[0]))
        self._words = self._array([os.fsencode(word) for word in words])
        self._environment = self._array(
            [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        )
        self._null = ctypes.create_string_buffer(os.fsencode(os.devnull))
        self._actions = self._file_actions(streams)
        self._attributes = self._spawn_attributes()
        self._frames = [ctypes.create_string_buffer(_CONTEXT_BYTES) for _ in self._functions]

    def _array(self, texts: list[bytes]) -> Any:
        if any(b"\0" in text for text in texts):
            raise ValueError("a zero byte in a command or an environment")
        return (self._ctypes.c_char_p * (len(texts) + 1))(*texts, None)

    def _file_actions(self, streams: dict[int, int]) -> Any:
        call, made = self._library, self._ctypes.create_string_buffer(_ACTIONS_BYTES)
        call.posix_spawn_file_actions_init(made)
        # first those that come from here: a number that is opened anew may be one of them
        for there, here in sorted(streams.items(), reverse=True):
            call.posix_spawn_file_actions_adddup2(made, here, there)
        for number in (0, 1, 2):
            if number not in streams:
                call.posix_spawn_file_actions_addopen(made, number, self._null, os.O_RDWR, 0)
        return made

    def _spawn_attributes(self) -> Any:
        call, made = self._library, self._ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        signals = self._ctypes.create_string_buffer(_SET_BYTES)
        call.posix_spawnattr_init(made)
        call.sigemptyset(signals)
        call.posix_spawnattr_setsigmask(made, signals)
        call.sigfillset(signals)
        call.posix_spawnattr_setsigdefault(made, signals)
        call.posix_spawnattr_setflags(made, _SETSIGDEF | _SETSIGMASK | _SETSID)
        return made

    def contexts(self, stack: int) -> Any:
        """`posix_spawn(...)`, then `_exit(0)`, on the two lowest stacks. All signals are blocked by now."""
        ctypes = self._ctypes
        spawn, leave = self._frames
        address = ctypes.addressof
        given = (self.pid, self._path, self._actions, self._attributes, self._words, self._environment)
        self._prepare(leave, self._functions[1], [0], stack, 0)
        self._prepare(
            spawn, self._functions[0], [address(each) for each in given], stack + _STACK_BYTES, address(leave)
        )
        return spawn

    def _prepare(self, frame: Any, function: Any, given: list[int], stack: int, then: int) -> None:
        ctypes = self._ctypes
        self._getcontext(frame)
        words = ctypes.cast(frame, ctypes.POINTER(ctypes.c_uint64))
        words[_LINK], words[_STACK], words[_STACK_SIZE] = then, stack, _STACK_BYTES
        self._makecontext(frame, function, len(given), *map(ctypes.c_void_p, given))
