"""A shell in a pseudo terminal, in which programs are started and interrupted as by a user at the keyboard."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from pathlib import Path

PROMPT = "ready> "


class Terminal:
    """`with Terminal(folder) as terminal:` a shell with job control whose prompt is known."""

    def __init__(self, where: Path) -> None:
        self.shown = ""  # all that was ever on the screen
        self._unread = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(where)
                os.execve("/bin/sh", ["sh", "-i"], {**os.environ, "PS1": PROMPT, "ENV": "", "TERM": "dumb"})
            finally:
                os._exit(127)

    def __enter__(self) -> Terminal:
        self.wait_for(PROMPT)
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def type(self, line: str) -> None:
        """One line and the return key."""
        os.write(self._fd, line.encode() + b"\n")

    def press_ctrl_c(self) -> None:
        """SIGINT to the whole foreground group."""
        os.write(self._fd, b"\x03")

    def wait_for(self, text: str, deadline_s: float = 20.0) -> float:
        """Until `text` is on the screen, behind what was waited for last; the seconds that took."""
        begun = time.monotonic()
        while (found := self.shown.find(text, self._unread)) < 0:
            left = begun + deadline_s - time.monotonic()
            assert left > 0, (
                f"{text!r} does not appear within {deadline_s:g} s:\n{self.shown[self._unread :]}"
            )
            self.look(left)
        self._unread = found + len(text)
        return time.monotonic() - begun

    def look(self, for_s: float = 0.0) -> None:
        """Take in what is shown, waiting for something at most so long."""
        if select.select([self._fd], [], [], for_s)[0]:
            self.shown += os.read(self._fd, 65536).decode(errors="replace").replace("\r\n", "\n")
