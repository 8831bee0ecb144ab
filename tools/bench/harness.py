"""What all benches share: the report, a run folder of one's own, and the machine in words.

A bench is `main(__doc__, options, run)`: it prints one JSON object on standard output (progress goes to standard
error) and its exit code is 1 where a bar is missed. Absolute times depend on the machine and on what else it does;
so each figure that has a bar stands beside a floor measured in the same run, in turns with it, or where there is none
(`floor_ns`) beside how long the floor of `log_call` took right before and after.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
LEAVE_S = 20.0  # for an agent to end by itself
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def say(line: str) -> None:
    """Progress, for whoever watches."""
    print(line, file=sys.stderr, flush=True)


class Report:
    """The figures of one bench, and whether all bars were reached."""

    def __init__(self, bench: str, form: str) -> None:
        self.head: dict[str, Any] = {
            "bench": bench,
            "form": form,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "python": platform.python_version(),
            "commit": commit(),
            "load_before": round(os.getloadavg()[0], 2),
        }
        self.figures: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}

    def figure(
        self,
        what: str,
        value: float,
        unit: str,
        *,
        floor: float | None = None,
        well: float | None = None,
        ratio: float | None = None,
        most: float | None = None,
        most_ratio: float | None = None,
    ) -> None:
        """Beside the figure of the floor, or that of the same with all well. `most` is a bar for the value.

        `most_ratio` is one for the ratio, which is not value / floor where it is a median of pairs.
        """
        found: dict[str, Any] = {"what": what, "value": rounded(value), "unit": unit}
        if floor is not None:
            found["floor"] = rounded(floor)
        if well is not None:
            found["well"] = rounded(well)
        if ratio is not None:
            found["ratio"] = rounded(ratio)
        if most is not None:
            found["bar"] = f"at most {most:g} {unit}"
            found["reached"] = value <= most
        if most_ratio is not None:
            if ratio is None:
                raise ValueError(f"{what}: a bar for a ratio needs a ratio")
            found["bar"] = f"at most {most_ratio:g} x"
            found["reached"] = ratio <= most_ratio
        self.figures.append(found)
        say(line_of(found))

    @property
    def missed(self) -> list[dict[str, Any]]:
        return [figure for figure in self.figures if figure.get("reached") is False]

    def as_dict(self) -> dict[str, Any]:
        load = round(os.getloadavg()[0], 2)
        body = {"load_after": load, "figures": self.figures, **self.notes, "reached": not self.missed}
        return {**self.head, **body}


def line_of(figure: dict[str, Any]) -> str:
    """One figure as a line of text."""
    line = f"{figure['what']}: {figure['value']:g} {figure['unit']}"
    for beside in ("floor", "well"):
        if beside in figure:
            line += f" ({beside} {figure[beside]:g})"
    if "ratio" in figure:
        line += f", {figure['ratio']:g} x"
    if "bar" in figure:
        line += f"; bar {figure['bar']}: {'reached' if figure['reached'] else 'MISSED'}"
    return line


def milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Median."""
    took = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        took.append((time.perf_counter() - begin) * 1e3)
    return median(took)


def rounded(value: float) -> float:
    """Four digits are more than any of these figures is worth."""
    return float(f"{value:.4g}")


def main(doc: str | None, run: Callable[[Report, argparse.Namespace], None], **options: Any) -> int:
    """Parse, run, print; the exit code. `options`: name -> (default for the full form, for --quick, help)."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="the form that `make bench` runs: same samples, fewer pairs"
    )
    for name, (full, quick, text) in options.items():
        flag = f"--{name.replace('_', '-')}"
        kind: Any = str if isinstance(full, str) else type(full)
        parser.add_argument(
            flag, type=kind, default=None, metavar="N", help=f"{text} (default {full}, quick {quick})"
        )
    given = parser.parse_args()
    for name, (full, quick, _) in options.items():
        if getattr(given, name) is None:
            setattr(given, name, quick if given.quick else full)
    report = Report(Path(sys.argv[0]).stem, "quick" if given.quick else "full")
    report.notes["options"] = {name: getattr(given, name) for name in options}
    from tools.bench.probe import floor_now_ns

    before = floor_now_ns()
    run(report, given)
    report.notes["floor_ns"] = [rounded(before), rounded(floor_now_ns())]
    print(json.dumps(report.as_dict(), indent=1), flush=True)
    return 1 if report.missed else 0


def use_environment() -> None:
    """Go on with the interpreter of .venv, if this is another one and that is there."""
    python = VENV / "bin" / "python"
    if python.exists() and Path(sys.prefix) != VENV:
        os.execv(python, [str(python), *sys.argv])


def packages(base: str | None = None) -> str:
    """The folder of installed packages: of this interpreter, or of the environment at `base`."""
    return sysconfig.get_path("purelib", vars=None if base is None else {"base": base})


@contextmanager
def plain_python() -> Iterator[str]:
    """An interpreter that finds the same packages as this one, as if ours were installed from a wheel.

    An editable install costs every interpreter of its environment some 15 ms and 60 modules at its start, ours or not;
    with those loaded already, the figures of an import would be too good, and those of the agent too bad.
    """
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        venv.create(folder, symlinks=True, with_pip=False)
        Path(packages(folder), "bench.pth").write_text(f"{ROOT}\n{ROOT / 'backend'}\n{packages()}\n")
        yield str(Path(folder) / "bin" / "python")


# ---- the machine ---------------------------------------------------------------------------------------------


def machine() -> str:
    """The machine in words: no names, no paths."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kernel = ".".join(platform.release().split("-")[0].split(".")[:2])
    return f"{os.cpu_count()} cores {model}, {memory:.0f} GiB, {platform.system()} {kernel}"


def commit() -> str:
    """Short hash of HEAD; with a + where tracked files differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


# ---- figures of samples ----------------------------------------------------------------------------------------


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted samples: the smallest that at least `share` of them do not exceed."""
    at = max(0, min(len(ordered) - 1, round(share * len(ordered) + 0.499999) - 1))
    return ordered[at]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


# ---- places and processes ----------------------------------------------------------------------------------------


def clean_environment() -> dict[str, str]:
    """The environment without settings of ours, and with the repository to import from."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGCLIENT_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}


def without_path(env: dict[str, str]) -> dict[str, str]:
    """The environment of an interpreter that imports what its own .pth file names, whatever this one's PYTHONPATH."""
    return {name: value for name, value in env.items() if name != "PYTHONPATH"}


class Place:
    """A run folder and a shm directory of one's own, as settings in `env`."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self.runs = folder / "runs"
        self.memory = memory
        settings = {"LOGCLIENT_DIR": str(self.runs), "LOGCLIENT_SHM_DIR": str(memory), "LOGCLIENT_QUIET": "1"}
        self.env = {**clean_environment(), **settings}

    def wait_empty(self, timeout_s: float = LEAVE_S) -> bool:
        """Until every run here is over and its agent gone; False if that takes too long."""
        deadline = time.monotonic() + timeout_s
        while glob("logclient-*/*/run.json", root_dir=self.memory):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


@contextmanager
def place(*, runs: Path | None = None, memory: Path | None = None) -> Iterator[Place]:
    """A fresh `Place`; at the end no process that was started with it is left, nor its files."""
    folder = Path(tempfile.mkdtemp(prefix="logclient-bench-"))
    shared = Path(tempfile.mkdtemp(prefix="logclient-bench-", dir=memory or "/dev/shm"))
    try:
        yield Place(runs or folder, shared)
    finally:
        end_all_with(f"LOGCLIENT_SHM_DIR={shared}")
        shutil.rmtree(shared, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def enter(place: Place) -> None:
    """Use the place in this very process: what it imports from now on reads these settings."""
    for name in [name for name in os.environ if name.startswith("LOGCLIENT_")]:
        del os.environ[name]
    os.environ.update({name: value for name, value in place.env.items() if name.startswith("LOGCLIENT_")})


def end_all_with(setting: str, timeout_s: float = 10.0) -> None:
    """SIGKILL every process that was started with `setting` in its environment, until none is left."""
    deadline = time.monotonic() + timeout_s
    while _kill_once(setting.encode()) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill_once(setting: bytes) -> int:
    found = 0
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        if pid == os.getpid():
            continue
        try:
            handle = os.pidfd_open(pid)  # before the look: the signal cannot reach a newcomer with this PID
        except OSError:
            continue
        try:
            if setting in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                found += 1
        except OSError:
            pass
        finally:
            os.close(handle)
    return found


def adopt_orphans() -> None:
    """From now on orphaned descendants, agents among them, become our children: `os.wait4` tells their CPU time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def memory_of(pid: int) -> dict[str, int]:
    """Bytes of memory of a process: Rss, and Pss, which counts what two processes share half for each."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name] = int(value.split()[0]) << 10
    return found
