"""A wall clock that a test sets, in the trainer and in everything that starts from it, whatever environment that has.

`SteppingClock` makes an environment of its own beside the one that runs the tests: an interpreter that loads, by a
`.pth` file, a module that replaces `time.time` and `time.time_ns`. The monotonic clocks and the kernel's stay.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOUR_NS = 3600 * 10**9
_MODULE = """
import mmap, os, time
_file = os.open({path!r}, os.O_RDONLY)
_word = memoryview(mmap.mmap(_file, 8, prot=mmap.PROT_READ)).cast("q")
os.close(_file)
_real = time.time_ns
def _time_ns():
    return _real() + _word[0]
time.time_ns = _time_ns
time.time = lambda: _time_ns() / 1e9
"""


class SteppingClock:
    """One wall clock, `offset_ns` off the real one."""

    def __init__(self, folder: Path) -> None:
        home = folder / "clock"
        venv.create(home, symlinks=True)
        self.python = str(home / "bin" / "python")
        (home / "bin" / "py-spy").symlink_to(Path(sysconfig.get_path("scripts"), "py-spy"))
        path = home / "offset"
        path.write_bytes(bytes(8))
        with open(path, "r+b") as file:
            self._word = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
        (packages,) = home.glob("lib/python*/site-packages")
        (packages / "stepping_clock.py").write_text(_MODULE.format(path=str(path)))
        ours = [path for path in sys.path if path.endswith("site-packages")] or [
            sysconfig.get_path("purelib")
        ]
        lines = [f"import site; site.addsitedir({each!r})" for each in ours]
        (packages / "stepping_clock.pth").write_text("\n".join([*lines, "import stepping_clock", ""]))
        asked = [self.python, "-P", "-c", "import logclient, time; print(time.time_ns.__name__)"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert said == "_time_ns\n", "the clock is not replaced"

    @property
    def offset_ns(self) -> int:
        return int(self._word[0])

    @offset_ns.setter
    def offset_ns(self, offset_ns: int) -> None:
        self._word[0] = offset_ns

    def popen(self) -> Callable[..., subprocess.Popen[Any]]:
        """Return a `Popen` whose Python programs have this clock."""

        def start(words: list[str], **given: Any) -> subprocess.Popen[Any]:
            return subprocess.Popen([self.python, *words[1:]], **given)

        return start
