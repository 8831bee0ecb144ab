"""The measured process: calls `log()`, or the floor, in one and the same loop, and says how long the calls took.

    python -m tools.bench.probe          reads commands from standard input, one JSON object a line, and answers so

Faults are made by whoever started it (`Probe` below): nothing but the loop runs in this process.
"""

from __future__ import annotations

import array
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Self

from tools.bench import harness

Call = Callable[[int, Mapping[str, Any]], None]
Make = Callable[[int], dict[str, Any]]

BLOCK = 200  # calls of one kind in a row: less than a quarter of the smallest lane


def floor_for(values: int) -> Call:
    """The least that any logger does: the time, and so many values into memory."""
    pack_into = Struct(f"<qq{values}d").pack_into
    buffer = bytearray(16 + 8 * values)

    def floor(step: int, metrics: Mapping[str, Any]) -> None:
        pack_into(buffer, 0, step, time.time_ns(), *metrics.values())

    return floor


floor = floor_for(10)


def metrics_of(step: int) -> dict[str, float]:
    """A new dict of 10 new floats, as a training loop makes it."""
    x = step * 0.001
    return {
        "train/loss": x + 0.1,
        "train/accuracy": x + 0.2,
        "train/grad_norm": x + 0.3,
        "optim/lr": x + 0.4,
        "optim/momentum": x + 0.5,
        "time/step": x + 0.6,
        "time/data": x + 0.7,
        "gpu/memory": x + 0.8,
        "gpu/utilisation": x + 0.9,
        "tokens": x + 1.0,
    }


def p50_ns(call: Call | None, make: Make, start: int) -> float:
    """Median ns of a call, over one block; None: of reading the clock twice."""
    clock = time.perf_counter_ns
    took = []
    for step in range(start, start + BLOCK):
        metrics = make(step)
        if call is None:
            before = clock()
            took.append(clock() - before)
        else:
            before = clock()
            call(step, metrics)
            took.append(clock() - before)
    return harness.quantile(sorted(took), 0.5)


def floor_now_ns(rounds: int = 50) -> float:
    """How fast this machine is at the moment: the floor's p50 as `log_call` measures it, for 10 floats."""
    took = []
    for number in range(rounds):
        took.append(p50_ns(floor, metrics_of, number) - p50_ns(None, metrics_of, number))
        time.sleep(0.002)  # so that it is no single moment
    return harness.median(took)


def paced(call: Call, count: int, pace_ns: int, *, spin: bool = False) -> array.array[int]:
    """ns of each of `count` calls, `pace_ns` apart: asleep in between, or busy as a training loop is."""
    took = array.array("q", bytes(8 * count))
    clock, sleep = time.perf_counter_ns, time.sleep
    due = clock()
    for step in range(count):
        metrics = metrics_of(step)
        before = clock()
        call(step, metrics)
        took[step] = clock() - before
        due += pace_ns
        ahead = due - clock()
        if ahead < -100 * pace_ns:
            due = clock()  # the machine was away for long: do not make up for it at full speed
        elif spin:
            while clock() < due:
                pass
        elif ahead > 0:
            sleep(ahead / 1e9)
    return took


def summary(took: array.array[int]) -> dict[str, float]:
    ordered = sorted(took)
    names = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "longest": 1.0}
    return {
        "samples": len(ordered),
        **{name: harness.quantile(ordered, q) / 1e3 for name, q in names.items()},
    }


def waited_ms() -> float:
    """How long this thread was ready to run and did not get a core."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e6


class Server:
    """Commands by name."""

    def __init__(self) -> None:
        self._run: Any = None

    def do_init(self, **settings: Any) -> dict[str, Any]:
        import logclient

        begin = time.perf_counter()
        self._run = logclient.init("bench", **settings)
        took_ms = 1e3 * (time.perf_counter() - begin)
        return {"shm_dir": self._run._session.shm_dir.path, "run_id": self._run.id, "init_ms": took_ms}

    def do_measure(self, call: str, count: int, pace_ns: int, spin: bool = False) -> dict[str, Any]:
        before = waited_ms()
        found = summary(paced(floor if call == "floor" else self._run.log, count, pace_ns, spin=spin))
        return {**found, "waited_ms": waited_ms() - before}

    def do_burst(self, count: int) -> dict[str, Any]:
        log = self._run.log
        for step in range(count):
            log(step, metrics_of(step))
        return {}

    def do_flush(self, timeout_s: float) -> dict[str, Any]:
        return {"done": self._run.flush(timeout_s)}

    def do_status(self) -> dict[str, Any]:
        return dict(self._run.status())

    def do_finish(self, timeout_s: float) -> dict[str, Any]:
        begin = time.perf_counter()
        done = self._run.finish(timeout_s)
        took_ms = 1e3 * (time.perf_counter() - begin)
        return {"done": done, "finish_ms": took_ms, **self._run.status()}


def serve() -> None:
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(server, f"do_{request.pop('do')}")(**request)
        print(json.dumps(answer), flush=True)


class Probe:
    """The driver's side: `with Probe(place) as probe: probe.ask("measure", call="log", ...)`."""

    def __init__(
        self,
        place: harness.Place,
        python: str = sys.executable,
        *,
        env: Mapping[str, str] | None = None,
        start: Callable[..., subprocess.Popen[str]] = subprocess.Popen,
        **settings: Any,
    ) -> None:
        """`env`: variables besides; `start`: a Popen of another host's; the rest goes to `init`."""
        self._settings = settings
        self._process = start(
            [python, "-m", "tools.bench.probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=harness.ROOT,
            env={**place.env, **(env or {})},
        )
        self.shm_dir = Path()
        self.init_ms = 0.0

    def __enter__(self) -> Self:
        found = self.ask("init", **self._settings)
        self.shm_dir, self.init_ms = Path(found["shm_dir"]), found["init_ms"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def send(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self, meanwhile: Callable[[], None] | None = None) -> dict[str, Any]:
        """The answer to what was sent; until it comes, `meanwhile` is called every 10 ms."""
        assert self._process.stdout is not None
        while meanwhile is not None and not select.select([self._process.stdout], [], [], 0.01)[0]:
            meanwhile()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"The measured process ended with {self._process.wait()}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.send(do, **arguments)
        return self.answer()

    def agent_pid(self, word: int) -> int:
        """PID of supervisor or worker (`layout.AGENT_...`) as the status page says it; 0 where there is none."""
        with open(self.shm_dir / "agent.status", "rb") as page:
            page.seek(8 * word)
            return int.from_bytes(page.read(8), "little")

    def wait_agent(self, *words: int, timeout_s: float = 20.0) -> list[int]:
        """PIDs, as soon as all of these processes live."""
        deadline = time.monotonic() + timeout_s
        while True:
            pids = [self.agent_pid(word) for word in words]
            if all(pid and os.path.exists(f"/proc/{pid}") for pid in pids):
                return pids
            if time.monotonic() > deadline:
                raise TimeoutError(f"No agent within {timeout_s:g} s.")
            time.sleep(0.01)


if __name__ == "__main__":
    serve()
