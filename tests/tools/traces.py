"""Looks for anything that a fault may have left on the machine, and runs the small programs that suffer from it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.faults import kernel, processes

ROOT = Path(__file__).resolve().parent.parent.parent


def traces_of(name: str, folder: Path) -> list[str]:
    """Mounts, loop devices, processes and files of a fault that are still there."""
    found = [f"mount {mounted}" for mounted in kernel.mounts(name)]
    found += [f"loop device {device}" for device in kernel.loop_devices(name)]
    for pid in (entry for entry in os.listdir("/proc") if entry.isdecimal()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # gone meanwhile
        if name.encode() in words:
            found.append(f"process {pid}: {words.replace(bytes(1), b' ').decode(errors='replace')}")
    return found + [f"file {path}" for path in folder.glob(f"*{name}*")]


@contextmanager
def python(
    code: str, *arguments: object, program: object = sys.executable
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code`; killed at the end, by when nothing may hold it any more."""
    words = [str(program), "-c", code, *(str(argument) for argument in arguments)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def wait_until_state(process: subprocess.Popen[Any], state: str) -> None:
    processes.wait_until(
        lambda: processes.state_of(process.pid) == state, 10.0, what=f"{process.args!r} in state {state}"
    )
