"""`why.txt` and `why.json` in the shm directory: what the observer knows now, for people and for programs.

The observer writes them, whole, on tmpfs alone: `cat` shows the verdict while every disk hangs. Programs find in
`why.json` what `logclient why --json` prints, with two keys more; the worker takes these into the node's documents
(`drain/node_document.py`), and the next observer goes on from them::

    "observed": {"kind": "ok" | "quiet" | "stalled", "verdict", "text", "since_ns", "since_mono_ns", "rank", "step"}
    "stalls":   [{"begin_ns", "begin_mono_ns", "end_ns", "end_mono_ns", "verdict", "text", "rank", "step"}]
    "records":  {process id: [records, mono_ns at which that many were seen first]}

Of a stall that goes on both `end` are null. While a run is ok there is no evidence: verdict *not stuck*, no processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from logclient.shm import modes

from ...observe import described, page, verdict
from ...observe.report import VERSION, Job
from ...observe.stall import MAX_STALLS, OK, QUIET, STALLED, StallEpisode, Standing
from ..host.shm_dir_handle import ShmDirHandle
from .why_json import JSON_FILE, TEXT_FILE, read

_KINDS = (OK, QUIET, STALLED)
_NOBODY_IS_LATE = "no rank is late"
_MAX_TEXT = 2000


class WhyFiles:
    """The two files of one shm directory."""

    def __init__(self, handle: ShmDirHandle) -> None:
        self._handle = handle

    def write(
        self,
        standing: Standing,
        stalls: Sequence[StallEpisode],
        job: Job | None,
        records: Mapping[str, tuple[int, float]],
    ) -> bool:
        """Write what is known now; False where tmpfs is full, and the files are as they were."""
        now_ns, mono_ns = time.time_ns(), time.monotonic_ns()
        content = described.described(job) if job is not None else _nothing(standing)
        content |= {
            "observed": {
                "kind": standing.kind,
                "verdict": standing.verdict,
                "text": standing.text[:_MAX_TEXT],
                **_time("since", standing.since, now_ns, mono_ns),
                "rank": standing.rank,
                "step": standing.step,
            },
            "stalls": [_stall(each, now_ns, mono_ns) for each in stalls],
            "records": {key: [count, int(1e9 * since)] for key, (count, since) in records.items()},
        }
        text = "\n".join(_lines(standing, stalls, job, now_ns, mono_ns)) + "\n"
        try:
            modes.publish(self._handle.file(TEXT_FILE), text.encode("utf-8", "backslashreplace"))
            modes.publish(self._handle.file(JSON_FILE), json.dumps(content).encode())
        except OSError:
            return False
        return True

    def write_failure(self, text: str) -> None:
        """Say that the observer failed; the next one writes over it."""
        try:
            modes.publish(self._handle.file(TEXT_FILE), f"the observer failed: {text}\n".encode())
        except OSError:
            return

    def load(self) -> tuple[Standing, list[StallEpisode], dict[str, tuple[int, float]]] | None:
        """Return what an earlier observer wrote; None where nothing is there that makes sense."""
        found = read(self._handle)
        try:
            state = found["observed"]
            kind = state["kind"]
            if kind not in _KINDS:
                return None
            standing = Standing(
                kind,
                str(state["verdict"]),
                str(state["text"]),
                state["since_mono_ns"] / 1e9,
                state["rank"],
                state["step"],
            )
            stalls = [
                StallEpisode(
                    each["begin_mono_ns"] / 1e9,
                    str(each["verdict"]),
                    str(each["text"]),
                    each["rank"],
                    each["step"],
                    None if each["end_mono_ns"] is None else each["end_mono_ns"] / 1e9,
                )
                for each in found["stalls"][-MAX_STALLS:]
            ]
            records = {
                str(key): (int(count), since / 1e9) for key, (count, since) in found["records"].items()
            }
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
        return standing, stalls, records


def _nothing(standing: Standing) -> dict[str, Any]:
    """Return the same keys without evidence: nobody is late, or no sample was compared yet."""
    kind = verdict.NOT_STUCK if standing.kind == OK else verdict.QUIET
    made: dict[str, Any] = {
        "why": VERSION,
        "verdict": kind,
        "stuck": False,
        "text": standing.text or _NOBODY_IS_LATE,
    }
    names = "pids", "blamed", "missing_ranks", "nodes", "processes", "groups", "gpus", "kernel_log", "reports"
    return made | {name: [] for name in names}


def _stall(each: StallEpisode, now_ns: int, mono_ns: int) -> dict[str, Any]:
    return {
        **_time("begin", each.begin, now_ns, mono_ns),
        **_time("end", each.end, now_ns, mono_ns),
        "verdict": each.verdict,
        "text": each.text[:_MAX_TEXT],
        "rank": each.rank,
        "step": each.step,
    }


def _time(name: str, at: float | None, now_ns: int, mono_ns: int) -> dict[str, int | None]:
    """Return a time of the monotonic clock, and the time that the wall clock of now gives it."""
    if at is None:
        return {f"{name}_ns": None, f"{name}_mono_ns": None}
    at_ns = int(1e9 * at)
    return {f"{name}_ns": now_ns - mono_ns + at_ns, f"{name}_mono_ns": at_ns}


def _lines(
    standing: Standing, stalls: Sequence[StallEpisode], job: Job | None, now_ns: int, mono_ns: int
) -> list[str]:
    def utc(at: float) -> str:
        return _utc((now_ns - mono_ns) / 1e9 + at)

    title = standing.kind if not standing.verdict else f"{standing.kind}: {standing.verdict}"
    lines = [f"{title}: {standing.text or _NOBODY_IS_LATE}"]
    if job is not None and (now := job.verdict).text != standing.text:
        lines.append(f"now: {now.kind}: {now.text}")
    lines.append(f"since {utc(standing.since)}, written {_utc(now_ns / 1e9)}")
    if job is not None:
        lines += ["", *page.page(job)]
    if stalls:
        lines += ["", "stalled so far:"]
        for each in stalls:
            end = "it goes on" if each.end is None else f"to {utc(each.end)}"
            lines.append(f"  {utc(each.begin)} {end}: {each.verdict}: {each.text}")
    return lines


def _utc(at: float) -> str:
    """Return a time for people; local time would take a look at a file of time zones."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
