"""`logclient recover`: an agent for whatever lies in shared memory without one, and the wait until it is stored."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import click

from logclient.config import Config
from logclient.errors import NoRun
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.modes import umask_of
from logclient.shm.shm_dir import folder_name
from logclient.spawn.agent import start_agent

from ..agent.host.json_file import write_json
from ..agent.output import probe
from ..agent.supervise import cleanup
from ..runs import live
from ..runs.live import LiveLanes, LiveShmDir
from . import recover_spools as spools
from . import screen
from .options import amount, with_json
from .text import plural, safe

_POLL_S = 0.1
_START_S = 5.0
_COMES_S = 15.0  # within which an agent that is late comes after all
_MAX_STARTS = 3  # of agents for one run, which die one after the other
_PROBE_S = 10.0


@dataclass(slots=True)
class Job:
    """One run that is being stored. Its lane files stay mapped, so its counts are known after they are gone."""

    live_dir: LiveShmDir
    lanes: list[LiveLanes]
    targets: dict[str, int]  # records accepted by process when we came
    dir: str = ""  # where it goes
    trouble: str = ""
    starts: int = 0  # of agents, by us
    started_at: float = -math.inf  # the last of them
    late: str = ""  # why the last of them was not there in time

    @property
    def waiting(self) -> int:
        """Records that were there when we came and are not durable."""
        return sum(max(0, self.targets[lanes.id] - lanes.counts()["durable"]) for lanes in self.lanes)

    @property
    def is_done(self) -> bool:
        """All records that were there are durable, and the documents: an agent that leaves has seen to that."""
        return not self.waiting and (
            not self.live_dir.is_there or all(lanes.has_durable_documents for lanes in self.lanes)
        )

    def counts(self) -> dict[str, int]:
        total = dict.fromkeys(("accepted", "stored", "forgotten", "damaged", "waiting"), 0)
        for lanes in self.lanes:
            for name, number in lanes.counts().items():
                if name in total:
                    total[name] += number
        return total


@click.command(
    "recover", epilog="Exit codes: 0 all is stored (or there was nothing), 1 nothing could be, 4 a part."
)
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--dir", "dir", metavar="DIR", help="Store runs there that are in shared memory only.")
@amount("--timeout timeout_s", click.FloatRange(0), 60.0, "SECONDS", "Wait at most.")
@with_json
def command(run: str | None, dir: str | None, timeout_s: float, as_json: bool) -> None:
    """Store what lies in shared memory and has no agent: of trainers that were killed together with theirs, or that
    go on without one. Starts an agent for each (or for RUN), and waits until it is done.

    What lies on a local disk since a network folder did not take it, and nobody brings home, is brought there first.

    A run whose run folder could not be used waits in shared memory: --dir says where it shall go. What was forgotten
    before an agent came is counted exactly, and shown by `logclient show`.

    \b
    logclient recover
    logclient recover --dir /data/runs --timeout 300
    """
    cleanup.clear(shm_dirs.bases(Config.from_env()))
    spooled = spools.bring_home(run, timeout_s)
    live_dirs = live.scan()
    jobs = [job for live_dir in _wanted(live_dirs, run, spooled) if (job := _job(live_dir)) is not None]
    if not jobs and not spooled:
        if as_json:
            screen.print_json({"runs": [], "spooled": []})
        else:
            click.echo("nothing to recover: every run on this host has an agent, or is stored")
        return
    if dir is not None:
        dir = os.path.abspath(dir)
    for job in jobs:
        job.trouble = _begin(job, dir) or ""
        job.dir = job.live_dir.dir  # asked now: the shm directory goes when all is stored
    total = sum(job.waiting for job in jobs)
    with screen.progress("storing", total) as advance:
        _wait(jobs, timeout_s, total, advance)
    results = [_result(job, timeout_s) for job in jobs]
    if as_json:
        screen.print_json({"runs": results, "spooled": spooled})
    else:
        spools.print_spooled(spooled)
        for result in results:
            _print(result)
    good = [result["stored_all"] for result in results] + [not told["trouble"] for told in spooled]
    if not all(good):
        raise click.exceptions.Exit(4 if any(good) else 1)


def _wanted(live_dirs: list[LiveShmDir], run: str | None, spooled: list[dict[str, Any]]) -> list[LiveShmDir]:
    """Return the runs that are meant: by id, by name, or by a part of the id."""
    if run is None:
        return live_dirs
    for found in (
        [live_dir for live_dir in live_dirs if live_dir.run_id == run],
        [live_dir for live_dir in live_dirs if live_dir.name == run],
        [live_dir for live_dir in live_dirs if run in live_dir.run_id],
    ):
        if found:
            return found
    if spooled:
        return []
    raise NoRun(f"no run in shared memory on this host has {run!r} as its id, in its id, or as its name")


def _job(live_dir: LiveShmDir) -> Job | None:
    """None where an agent has all in hand: its processes live, or it stores what they left."""
    has_agent = live_dir.has_agent
    somebody = any(lanes.is_open for lanes in live_dir.processes)
    if has_agent and somebody and live_dir.dir:
        return None
    return Job(
        live_dir, live_dir.processes, {lanes.id: lanes.counts()["accepted"] for lanes in live_dir.processes}
    )


def _begin(job: Job, dir: str | None) -> str | None:
    """Say where to, if that is open, and start an agent, if there is none; why that is not possible."""
    live_dir = job.live_dir
    if not live_dir.dir:
        if dir is None:
            return "it is in shared memory only, its run folder could not be used: say where to with --dir"
        trouble = _set_folder(live_dir, dir)
        if trouble:
            return trouble
    if not live_dir.has_agent:
        _start(job)
    return None


def _start(job: Job) -> None:
    """Start an agent; one that is late, on a busy machine, may come yet."""
    job.starts += 1
    shm_dir = job.live_dir.shm_dir
    job.late = start_agent(shm_dir, _START_S, check_folder=not shm_dir.folder_answer()) or ""
    job.started_at = time.monotonic()


def _set_folder(live_dir: LiveShmDir, dir: str) -> str | None:
    """Write where the run shall go, after a look in a child that may hang; why it cannot go there."""
    reason = _why_not(live_dir, dir)
    if reason is not None:
        return f"{dir} cannot be used: {reason}"
    if not write_json(live_dir.shm_dir.file("folder.json"), probe.there(dir)):
        return f"{live_dir.shm_dir.path} cannot be written"
    return None


def _why_not(live_dir: LiveShmDir, dir: str) -> str | None:
    """None where a file of the run can be written there; the look is another process's, which may hang in it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(umask_of(live_dir.shm_dir.facts))
            answer = probe.why_not(dir, os.path.join(dir, folder_name(live_dir.run_id)), live_dir.node) or ""
            os.write(writer, b"." + answer.encode("utf-8", "backslashreplace"))
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + _PROBE_S
    try:
        while time.monotonic() < deadline:
            done, _ = os.waitpid(child, os.WNOHANG)
            if done:
                answer = os.read(reader, 4096).decode("utf-8", "replace")
                return (answer[1:] or None) if answer else "the look at it failed"
            time.sleep(0.01)
        os.kill(child, 9)  # in state D it stays; nobody waits for it
    finally:
        os.close(reader)
    return f"it does not answer within {_PROBE_S:g} s"


def _wait(jobs: list[Job], timeout_s: float, total: int, advance: Any) -> None:
    deadline = time.monotonic() + timeout_s
    shown = 0
    while time.monotonic() < deadline:
        left = [job for job in jobs if not job.trouble and not job.is_done and _has_hope(job)]
        done = total - sum(job.waiting for job in jobs)
        advance(done - shown)
        shown = done
        if not left:
            return
        time.sleep(_POLL_S)


def _has_hope(job: Job) -> bool:
    """Is there an agent, or is one on its way? One that was about to leave when we came, or died since, is replaced."""
    if job.live_dir.agent()["state"] != "gone" or time.monotonic() - job.started_at < _COMES_S:
        return True
    if job.starts >= _MAX_STARTS:
        return False
    _start(job)
    return True


def _result(job: Job, timeout_s: float) -> dict[str, Any]:
    live_dir = job.live_dir
    counts = job.counts()
    agent = live_dir.agent()
    trouble = job.trouble
    if not trouble and not job.is_done:
        trouble = f"not all is stored after {timeout_s:g} s; the agent goes on"
        if agent["state"] in ("gone", "gave up"):
            trouble = job.late or (
                f"the agent is {agent['state']}: see agent.log in the run's folder, and `logclient doctor`"
            )
        elif agent["disk_silent_s"]:
            trouble += f"; the disk is {agent['disk']}"
        elif agent["disk_errno"]:
            trouble += f"; writing fails: {agent['disk_error']}"
    return {
        "id": live_dir.run_id,
        "name": live_dir.name,
        "dir": job.dir,
        "agent_started": job.starts > 0,
        "stored_all": not trouble,
        "trouble": trouble,
        **counts,
    }


def _print(result: dict[str, Any]) -> None:
    mark, colour = screen.state_mark("finished" if result["stored_all"] else "terminated")
    parts: list[Any] = [(f"{mark} ", colour), (safe(result["name"]), "bold")]
    if result["name"] != result["id"]:
        parts.append("  " + safe(result["id"]))
    screen.show(screen.line(*parts))
    said = f"{plural(result['stored'], 'record')} stored"
    gone = [f"{result[name]:,} {name}" for name in ("forgotten", "damaged") if result[name]]
    said += f", {' and '.join(gone)}: exactly these are missing" if gone else ", none missing"
    if result["waiting"]:
        said += f", {result['waiting']:,} still in shared memory"
    screen.show(screen.line("  ", said))
    if result["dir"]:
        screen.show(screen.line(("  in ", "dim"), safe(result["dir"])))
    if result["trouble"]:
        screen.show(screen.line(("  ! ", "yellow"), safe(result["trouble"])))
