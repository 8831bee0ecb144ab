"""Command line, folder and variables of a process, as `/proc` has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from logclient_backend.observe.environment import program


def test_executable_is_named_as_it_was_started(tmp_path: Path) -> None:
    """A link in a venv says more than the interpreter that it leads to; a name that leads elsewhere is not shown."""
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    for word, expected in ((str(link), str(link)), ("bin/python", str(link)), ("/bin/true", None)):
        child = subprocess.Popen(
            [word, "-c", "print(1, flush=True); input()"],
            executable=link,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert child.stdout is not None and child.stdout.readline() == b"1\n"
            found = program.read(child.pid, every_variable=False, more={})["executable"]
            assert found == (expected or str(Path(sys.executable).resolve()))
        finally:
            child.communicate(b"\n", timeout=30)
