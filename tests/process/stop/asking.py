"""What the tests of requests share: asking as a command does, and what became of a request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from logclient.shm import shm_dir as shm_dirs
from logclient.shm import stop_requests
from logclient_backend.runs import live
from logclient_backend.runs.live import LiveShmDir

from ..disturbed import ROOT, wait_until


def command(*words: str, code: int = 0, **env: str) -> dict[str, Any]:
    """`logclient stop WORDS --json`; what it printed, or under `error` the sentence on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", "stop", *words, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env={**os.environ, **env},
    )
    assert done.returncode == code, done
    found = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    assert isinstance(found, dict)
    return found


def hand_in(path: str, kind: str, **more: Any) -> str:
    """Put a request into a shm directory, as the command does; its id."""
    there = shm_dirs.read(path)
    assert there is not None
    request = {"id": stop_requests.new_id(), "kind": kind, "time_ns": time.time_ns(), "by": "a test", **more}
    stop_requests.ask(there, request)
    return str(request["id"])


def taken(path: str, id: str = "") -> dict[str, Any]:
    """What became of the request with that id, or of the newest, once the agent has taken it."""

    def found() -> dict[str, Any] | None:
        there = live.look(path)
        requests = [each for each in there.requests() if id in ("", each["id"])] if there is not None else []
        return requests[-1] if requests else None

    result = wait_until(found, 60, "the agent takes the request")
    assert isinstance(result, dict)
    return result


def live_dir(run_id: str, shm_root: str | Path | None = None) -> LiveShmDir:
    """The shm directory of a live run, as soon as all is there."""

    def found() -> LiveShmDir | None:
        return next((each for each in live.scan() if each.run_id == run_id and each.processes), None)

    result = wait_until(found, 120, f"run {run_id} is live")
    assert isinstance(result, LiveShmDir)
    return result
