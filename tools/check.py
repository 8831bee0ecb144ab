"""Run all that CI runs; exit with 1 if any of it fails.

    python tools/check.py                  everything but the benches
    python tools/check.py --quick          without the tests marked slow or root, and those of XLA and JAX
    python tools/check.py --only types     one step
    python tools/check.py --only benches   the quick form of all benches; `make bench` runs it
    python tools/check.py --fix            the twin: mend and format instead of complaining

A failing step does not stop the ones after it. The tests come last, so that the last summary is pytest's own.

The benches are no part of a full run: a time that is measured on a shared machine must not decide whether the code
is right. What they count (threads, sockets, bytes a point, memory) is asserted by `tests/bench/test_counts.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

# Most of a test is waiting for processes. More than two a core would only make them wait for each other.
WORKERS = str(min(8, 2 * (os.cpu_count() or 1)))

Command = list[str]

STEPS: dict[str, Command] = {
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": ["-m", "ruff", "check", "--quiet", "."],
    "types": ["-m", "mypy"],
    "imports": ["-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-logo"],
    "rooms": ["tools/rooms.py"],
    "words": ["tools/words.py"],
    "sizes": ["tools/sizes.py"],
    "page": ["tools/modules.py"],
    "proto": ["tools/genproto.py", "--check"],
    "docs": ["tools/gendocs.py", "--check"],
    # Tests in environments of their own, made with the first call.
    "xla": ["tools/apart.py", "xla"],
    "jax": ["tools/apart.py", "jax"],
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


def run(name: str, command: Command) -> bool:
    """Run one step, its output passing through; tell how it went."""
    print(f"== {name}", flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT).returncode == 0


def run_all(steps: dict[str, Command]) -> list[str]:
    """Run the steps in order, print the table before the last one, and return the names of those that failed."""
    failed: list[str] = []
    rows: list[tuple[str, float, bool]] = []
    for name, command in steps.items():
        if name == "tests" and rows:
            print_table(rows)
        begin = time.monotonic()
        passed = run(name, command)
        rows.append((name, time.monotonic() - begin, passed))
        if not passed:
            failed.append(name)
    if "tests" not in steps:
        print_table(rows)
    return failed


def print_table(rows: list[tuple[str, float, bool]]) -> None:
    print("\nstep       seconds  result")
    for name, seconds, passed in rows:
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
    failed = run_all(steps)
    if earlier := [name for name in failed if name != "tests"] if "tests" in steps else []:
        print(f"The tests are not all: {', '.join(earlier)} failed too, see above them.", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
