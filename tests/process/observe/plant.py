"""Programs that hang in one way each, and what `logclient why` says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..disturbed import ROOT, wait_until

PATIENCE_S = 60.0
PRELUDE = """
import os, sys, time
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def ready():
    open(f"ready{RANK}", "w").close()

"""


Wrap = Callable[[int, list[str]], list[str]]  # a rank's command line -> that under which it is started


@contextmanager
def program(
    folder: Path, source: str, *, count: int = 1, wrap: Wrap | None = None, **env: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `count` processes of one program, once each has called `ready`; RANK and WORLD_SIZE are set."""
    path = folder / "main.py"
    path.write_text(PRELUDE + textwrap.dedent(source))
    begun = []
    try:
        for rank in range(count):
            more = {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
                **env,
            }
            words = [sys.executable, str(path)]
            words = words if wrap is None else wrap(rank, words)
            begun.append(subprocess.Popen(words, cwd=folder, env={**os.environ, **more}))
        files = [folder / f"ready{rank}" for rank in range(count)]
        wait_until(lambda: all(file.exists() for file in files), PATIENCE_S, "all are ready")
        yield begun
    finally:
        for process in begun:
            process.kill()
        for process in begun:
            process.wait(PATIENCE_S)


def asked(*words: object, wrap: Sequence[str] = (), **env: str) -> subprocess.CompletedProcess[str]:
    """The command `why`, once it has ended; `wrap`: the words before it."""
    command = [*wrap, sys.executable, "-m", "logclient_backend", "why", *map(str, words)]
    given: Any = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "cwd": ROOT}
    return subprocess.run(command, env={**os.environ, **env}, **given)


def why(*words: object, wrap: Sequence[str] = (), **env: str) -> tuple[dict[str, Any], int]:
    """(what it prints with --json, exit code)."""
    done = asked(*words, "--json", wrap=wrap, **env)
    assert done.returncode in (0, 3, 4), done.stderr
    return json.loads(done.stdout), done.returncode


def settled(kind: str, *words: object, wrap: Sequence[str] = (), **env: str) -> tuple[dict[str, Any], int]:
    """The same, once the processes are where they stay: the verdict is that kind."""
    found: list[tuple[dict[str, Any], int]] = []

    def is_so() -> bool:
        found[:] = [why(*words, wrap=wrap, **env)]
        return bool(found[0][0]["verdict"] == kind)

    try:
        wait_until(is_so, PATIENCE_S, f"the verdict is {kind}")
    except AssertionError:
        raise AssertionError(found[0][0]["text"]) from None
    return found[0]


def of(processes_: list[subprocess.Popen[bytes]]) -> list[str]:
    return [word for process in processes_ for word in ("--pid", str(process.pid))]


LOGGED = """
import logclient
run = logclient.init(project="why", name={name!r}, dir={dir!r}, quiet=True)
for step in range(50):
    run.log(step, {{"loss": 1 / (step + 1)}})
    time.sleep(0.01)
ready()
"""

RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=RANK, world_size=RANKS)
dist.barrier()
ready()
def g(): dist.barrier()
def f(): {odd}
f() if RANK == 2 else g()
"""
