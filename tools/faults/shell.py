"""The command lines of the faults have this in common: run a command, and make the fault while it runs."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tools.faults.fault import Fault

LEAVE_S = 10.0  # for the command to end once the fault is over and it was told to


def parser(module: str, description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m tools.faults.{module}",
        description=description,
        epilog="Without a command: print the path, make the fault, and clean up at Ctrl-C or once --seconds are over. "
        "Exit code: the command's.",
    )
    made.add_argument(
        "--after", type=float, default=0.0, metavar="S", help="begin the fault S seconds after the command"
    )
    made.add_argument(
        "--seconds", type=float, metavar="S", help="end the fault after S seconds (default: with the command)"
    )
    made.add_argument(
        "command", nargs="*", help="after `--`; {} is the path of the mount, also in $FAULT_DIR"
    )
    return made


def run(
    fault: Fault,
    given: argparse.Namespace,
    begin: Callable[[], object],
    end: Callable[[], object],
) -> int:
    """Start the command, begin the fault, end it, wait for the command; the command's exit code."""
    command = [word.replace("{}", str(fault.path)) for word in given.command]
    print(fault.path, file=sys.stderr if command else sys.stdout, flush=True)
    if not command:
        return _hold(given, begin, end)
    child = subprocess.Popen(command, env={**os.environ, "FAULT_DIR": str(fault.path)})
    fault.kill_if_busy(child.pid)
    try:
        if not _ended(child, given.after):
            begin()
            try:
                _ended(child, given.seconds)
            finally:
                end()
        code = child.wait()
    except BaseException:
        child.send_signal(signal.SIGTERM)
        if not _ended(child, LEAVE_S):
            child.kill()
        raise
    return code if code >= 0 else 128 - code


def _ended(child: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _hold(given: argparse.Namespace, begin: Callable[[], object], end: Callable[[], object]) -> int:
    try:
        time.sleep(given.after)
        begin()
        try:
            if given.seconds is None:
                signal.pause()
            time.sleep(given.seconds)
        finally:
            end()
    except KeyboardInterrupt:
        pass
    return 0
