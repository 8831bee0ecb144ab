"""Random crashes of the agent while a trainer logs, and an exact account of its records afterwards.

    python tools/faults/crash.py --seed 3 --seconds 20

For the given time worker and supervisor are killed, stopped and continued at random, with random fail points armed
in the agent (`logclient_backend/failpoint.py`) and lanes that may overflow. Then the trainer ends or is killed, all
agents are killed, a sound one is started, as `logclient recover` does, and the run folder is checked against what
the trainer says that it logged: accepted = stored + forgotten + damaged, exactly, per stream; nothing twice; order
and values right. The same seed makes the same plan; what it meets is a matter of timing. Prints one line of JSON;
exit code 1 where the account does not hold.

`training` and `account` are also what the tests of faults use.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from logclient.shm import layout
from logclient.shm import shm_dir as shm_dirs
from logclient.spawn.agent import agent_lives, start_agent
from logclient_backend.wal.reader import WalReader
from tests.conftest import kill_all_with
from tests.process import scripts
from tests.process.disturbed import Trainer, documents, node_folders, stored, wait_until
from tools.faults import processes

RATE = 5_000
START_S = 10.0
GONE_S = 60.0  # until a sound agent has stored everything
LANES_BYTES = (256 << 10, 4 << 20)  # the small ones overflow while there is no agent
FINISH_S = 0.5  # the trainer waits no longer for an agent that is being killed

RUNNING_POINTS = (
    "drain.taken",
    "stage.appended",
    "stage.released",
    "copy.write",
    "copy.synced",
    "worker.loop",
)
SEAL_POINTS = ("copy.seal", "copy.sealed", "documents.save")
DISK_POINTS = ("copy.write", "copy.seal", "documents.save")
# Small segments, so that sealing happens; a worker that stands still is soon replaced; crashes end nothing.
SETTINGS = {"SEGMENT_BYTES": str(128 << 10), "STALL_S": "1.0", "RESTART_LIMIT": "100000", "LINGER_S": "1.0"}


@contextmanager
def training(folder: Path, env: dict[str, str] | None = None, **plan: Any) -> Iterator[Trainer]:
    """A `Trainer`; at the end neither it, nor an agent of its, nor its shm directory is left."""
    trainer = None
    try:
        trainer = Trainer(folder, env, **plan)
        yield trainer
    finally:
        kill_all_with(f"LOGCLIENT_SHM_DIR={os.environ['LOGCLIENT_SHM_DIR']}")
        if trainer is not None:
            trainer.process.wait(10)
            assert trainer.process.stdout is not None
            trainer.process.stdout.close()
            shutil.rmtree(trainer.shm_dir, ignore_errors=True)


def kill_agents(deadline_s: float = 10.0) -> None:
    """SIGKILL supervisors and workers, so that none brings the others back; returns when all are gone."""

    def none_left() -> bool:
        scripts.kill_agents()
        return not any(map(processes.is_alive, scripts.agents()))

    processes.wait_until(none_left, deadline_s, what="all agents gone")


def recover(path: str) -> None:
    """Start an agent for a shm directory that has none, as `logclient recover` does."""
    shm_dir = shm_dirs.read(path)
    if shm_dir is None:
        return  # everything was stored already
    trouble = start_agent(shm_dir, START_S, check_folder=False)
    if trouble is not None:
        raise RuntimeError(trouble)


@dataclass
class Account:
    """What became of a trainer's records. `problems` is empty where every record is accounted for."""

    accepted: int = 0
    stored: int = 0
    forgotten: int = 0
    damaged: int = 0
    newest: int = 0  # records at the end of which none is missing
    problems: list[str] = field(default_factory=list)


def account(run_dir: Path, logged: int, begun: int | None = None) -> Account:
    """Compare a run folder with what one trainer with one thread logged: its record of step n has seq n + 1.

    `begun`: calls of log() that were begun, where the trainer was killed.
    """
    found = stored(run_dir)
    known = {
        stream: span
        for folder in node_folders(run_dir)
        for stream, span in WalReader(str(folder)).spans().items()
    }
    counts = {
        stream: counts for document in documents(run_dir) for stream, counts in document["streams"].items()
    }
    result = Account()
    problems = result.problems
    if len(counts) > 1 or set(counts) != {stream.hex() for stream in known}:
        problems.append(
            f"the documents name the streams {sorted(counts)}, the segments {list(map(bytes.hex, known))}"
        )
    for stream, span in known.items():
        seqs, steps = found.seqs.get(stream, []), found.steps.get(stream, [])
        told = counts.get(stream.hex(), {"accepted": 0, "stored": 0, "damaged": 0})
        name = stream.hex()[:8]
        if len(set(seqs)) != len(seqs):
            problems.append(f"{name}: {len(seqs) - len(set(seqs))} records are stored twice")
        if seqs != sorted(seqs):
            problems.append(f"{name}: the order is not kept")
        if any(step != seq - 1 for seq, step in zip(seqs, steps, strict=True)):
            problems.append(f"{name}: steps are not those that were logged")
        forgotten, damaged = len(span.forgotten) + len(span.missing()), len(span.damaged)
        if told["accepted"] != len(seqs) + forgotten + damaged:
            problems.append(
                f"{name}: {told} but {len(seqs)} stored, {forgotten} forgotten, {damaged} damaged"
            )
        if told["stored"] != len(seqs) or told["damaged"] != damaged:
            problems.append(f"{name}: {told} but {len(seqs)} stored, {damaged} damaged are in the segments")
        result.accepted += told["accepted"]
        result.stored += len(seqs)
        result.forgotten += forgotten
        result.damaged += damaged
        result.newest += _newest(seqs, told["accepted"])
    if found.wrong:
        problems.append(f"{found.wrong} records have other values than were logged")
    if not logged <= result.accepted <= (logged if begun is None else begun):
        problems.append(f"{logged} records logged, {result.accepted} accounted for")
    return result


def _newest(seqs: list[int], accepted: int) -> int:
    """How many records up to the last one are there without a gap."""
    count = 0
    for seq in reversed(seqs):
        if seq != accepted - count:
            break
        count += 1
    return count


# ---- random crashes ------------------------------------------------------------------------------------------------


def fail_points(rng: random.Random) -> str:
    """Text for LOGCLIENT_FAILPOINTS: one to three points, reached again by every new worker."""
    armed: dict[str, str] = {}
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.6:
            armed[rng.choice(RUNNING_POINTS)] = f"kill:{rng.randint(2, 12)}"
        elif kind < 0.75:
            armed[rng.choice(SEAL_POINTS)] = f"kill:{rng.randint(2, 4)}"
        elif kind < 0.9:
            armed[rng.choice(DISK_POINTS)] = f"{rng.choice(('eio', 'enospc'))}:{rng.randint(1, 4)}"
        else:
            armed[rng.choice(RUNNING_POINTS)] = f"stop:{rng.randint(4, 12)}"
    return ",".join(f"{name}={what}" for name, what in armed.items())


def disturb(trainer: Trainer, rng: random.Random, seconds: float) -> dict[str, int]:
    """Signals at random for so long, a new agent where both processes are gone; how often what happened."""
    page = trainer.status_page()
    done = {"killed": 0, "stopped": 0, "both": 0, "recovered": 0}
    paused: list[tuple[float, int, int | None]] = []
    end = time.monotonic() + seconds
    try:
        while (now := time.monotonic()) < end and trainer.process.poll() is None:
            for until, pid, started in [pause for pause in paused if pause[0] < now]:
                processes.send(pid, signal.SIGCONT, started)
                paused.remove((until, pid, started))
            time.sleep(rng.uniform(0.02, 0.3))
            worker = int(page.words[layout.AGENT_WORKER])
            supervisor = int(page.words[layout.AGENT_SUPERVISOR])
            pid = worker if rng.random() < 0.7 else supervisor
            kind = rng.random()
            if kind < 0.65:
                done["killed"] += pid > 0 and processes.send(pid, signal.SIGKILL)
            elif kind < 0.9:
                started = processes.start_time_of(pid) if pid else None
                if started is not None and processes.send(pid, signal.SIGSTOP, started):
                    paused.append((now + rng.uniform(0.1, 2.0), pid, started))
                    done["stopped"] += 1
            else:
                kill_agents()
                done["both"] += 1
            if rng.random() < 0.3:
                done["recovered"] += _bring_back(trainer)
    finally:
        for _, pid, started in paused:
            processes.send(pid, signal.SIGCONT, started)
    return done


def _bring_back(trainer: Trainer) -> bool:
    shm_dir = shm_dirs.read(trainer.shm_dir)
    if shm_dir is None or agent_lives(shm_dir):
        return False
    recover(trainer.shm_dir)
    return True


def crash(seed: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One run; what happened, and `problems`. LOGCLIENT_DIR and LOGCLIENT_SHM_DIR are the caller's."""
    rng = random.Random(seed)
    armed = fail_points(rng)
    lanes_bytes = rng.choice(LANES_BYTES)
    ends = rng.choice(("finish", "kill"))
    env = {f"LOGCLIENT_{name}": value for name, value in SETTINGS.items()}
    env |= {"LOGCLIENT_LANES_BYTES": str(lanes_bytes), "LOGCLIENT_FAILPOINTS": armed}
    plan = {"rate": RATE, "seconds": seconds + 60 * (ends == "kill"), "finish_timeout_s": FINISH_S}
    with training(folder, env, **plan) as trainer:
        os.environ["LOGCLIENT_FAILPOINTS"] = armed  # agents that we start meanwhile are no better
        try:
            done = disturb(trainer, rng, seconds)
        finally:
            del os.environ["LOGCLIENT_FAILPOINTS"]
        if ends == "kill":
            trainer.kill()
            trainer.process.wait(10)
        else:
            trainer.end()
        kill_agents()
        recover(trainer.shm_dir)
        wait_until(lambda: not os.path.exists(trainer.shm_dir), GONE_S, "a sound agent stores everything")
        found = account(Path(os.environ["LOGCLIENT_DIR"]), trainer.logged, trainer.begun)
        counts = {name: getattr(found, name) for name in ("accepted", "stored", "forgotten", "damaged")}
        told = {
            "seed": seed,
            "seconds": seconds,
            "fail_points": armed,
            "lanes_bytes": lanes_bytes,
            "trainer": ends,
        }
        told |= {**done, "logged": trainer.logged}
        return {**told, **counts, "problems": found.problems}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Crash the agent at random while a trainer logs, then check that every record is accounted for."
    )
    parser.add_argument("--seed", type=int, default=0, help="of the plan (default 0)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the trainer logs (default 20)")
    given = parser.parse_args(arguments)
    memory = tempfile.mkdtemp(prefix="logclient-crash-", dir="/dev/shm")
    try:
        with tempfile.TemporaryDirectory(prefix="logclient-crash-") as folder:
            os.environ["LOGCLIENT_SHM_DIR"] = memory
            os.environ["LOGCLIENT_DIR"] = str(Path(folder) / "runs")
            try:
                result = crash(given.seed, given.seconds, Path(folder))
            except (AssertionError, TimeoutError, RuntimeError) as error:
                result = {"seed": given.seed, "seconds": given.seconds, "problems": [str(error)]}
    finally:
        shutil.rmtree(memory, ignore_errors=True)
    print(json.dumps(result), flush=True)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
