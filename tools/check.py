"""Run all that CI runs; exit with 1 if any of it fails.

    python tools/check.py                  everything but the benches
    python tools/check.py --quick          without the tests marked slow or root, and those of XLA and JAX
    python tools/check.py --only types     one step
    python tools/check.py --only benches   the quick form of all benches; `make bench` runs it
    python tools/check.py --fix            the twin: mend and format instead of complaining

A failing step stops no other. The tests come last and alone, so that the last summary is pytest's own; the steps
before them run side by side, as many as there are cores, and what a step prints is shown when it has ended.

The benches are no part of a full run: a time that is measured on a shared machine must not decide whether the code
is right. What they count (threads, sockets, bytes a point, memory) is asserted by `tests/bench/test_counts.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

# Two cores are busy to 97 % with five workers, and tests with short deadlines fail: more than this gain nothing.
WORKERS = str(min(8, 2 * (os.cpu_count() or 1)))

Command = list[str]

STEPS: dict[str, Command] = {
    # Tests in environments of their own, made with the first call. The first four take longest.
    "xla": ["tools/apart.py", "xla"],
    "jax": ["tools/apart.py", "jax"],
    "types": ["-m", "mypy"],
    # Every worker of the tests collects them all: here modules are compiled once, for all of them.
    "collect": ["-m", "pytest", "--collect-only", "-qqq", "-m", "not bench"],
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": ["-m", "ruff", "check", "--quiet", "."],
    "imports": ["-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-logo"],
    "rooms": ["tools/rooms.py"],
    "words": ["tools/words.py"],
    "sizes": ["tools/sizes.py"],
    "page": ["tools/modules.py"],
    "proto": ["tools/genproto.py", "--check"],
    "docs": ["tools/gendocs.py", "--check"],
    "tests": ["-m", "pytest", "-n", WORKERS, "--dist", "loadgroup", "-m", "not bench", "--durations=25"],
}
# Run by name only. Serial and alone: a bench needs a quiet machine.
ASKED_FOR: dict[str, Command] = {"benches": ["-m", "pytest", "-m", "bench"]}
# Mend first: what it changes may need formatting.
FIXES: dict[str, Command] = {
    "proto": ["tools/genproto.py"],
    "docs": ["tools/gendocs.py"],
    "lint": ["-m", "ruff", "check", "--fix", "."],
    "format": ["-m", "ruff", "format", "."],
}
ONLY = f"one step: {', '.join([*STEPS, *ASKED_FOR])}"
QUICK = ["-m", "not slow and not root and not bench"]  # the last -m counts


class Result(NamedTuple):
    """The end of a step."""

    name: str
    seconds: float
    passed: bool


def run(name: str, command: Command) -> Result:
    """Run a step, its output passing through."""
    print(f"== {name}", flush=True)
    begin = time.monotonic()
    passed = subprocess.run([sys.executable, *command], cwd=ROOT).returncode == 0
    return Result(name, time.monotonic() - begin, passed)


def run_aside(name: str, command: Command) -> Result:
    """Run a step beside others, and print its output when it has ended."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(f"== {name}\n{done.stdout}", end="", flush=True)
    return Result(name, time.monotonic() - begin, done.returncode == 0)


def run_all(steps: dict[str, Command], *, together: int = 1) -> list[str]:
    """Run the steps, so many at a time, the tests after all others; return the names of those that failed."""
    before = [name for name in steps if name != "tests"]
    if together > 1 and len(before) > 1:
        with ThreadPoolExecutor(together) as pool:
            results = list(pool.map(lambda name: run_aside(name, steps[name]), before))
    else:
        results = [run(name, steps[name]) for name in before]
    if results:
        print_table(results)
    if "tests" in steps:
        results.append(run("tests", steps["tests"]))
    return [result.name for result in results if not result.passed]


def print_table(results: list[Result]) -> None:
    print("\nstep       seconds  result")
    for name, seconds, passed in results:
        print(f"{name:<10} {seconds:7.1f}  {'passed' if passed else 'FAILED'}")
    print(flush=True)


def main() -> int:
    if PYTHON.exists() and Path(sys.prefix) != VENV:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])  # `python tools/check.py` means the tools of .venv
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out tests marked slow or root")
    parser.add_argument("--only", metavar="STEP", choices=[*STEPS, *ASKED_FOR], help=ONLY)
    parser.add_argument("--fix", action="store_true", help="format, and mend what the linter can")
    parser.add_argument("--pace", help="scale long tests: 1 is full length (see tests/conftest.py)")
    options = parser.parse_args()

    if options.fix:
        return 1 if run_all(FIXES) else 0
    steps = dict(STEPS) if options.only is None else {options.only: {**STEPS, **ASKED_FOR}[options.only]}
    if options.quick:
        for name in ("xla", "jax"):
            steps.pop(name, None)
    for name in steps.keys() & {"xla", "jax", "benches", "tests"}:
        pace = ["--pace", options.pace] if options.pace else []
        quick = QUICK if options.quick and name == "tests" else []
        steps[name] = [*steps[name], *quick, *pace]
    failed = run_all(steps, together=os.cpu_count() or 1)
    if earlier := [name for name in failed if name != "tests"] if "tests" in steps else []:
        print(f"The tests are not all: {', '.join(earlier)} failed too, see above them.", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
