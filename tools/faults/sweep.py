"""Clean up after guards that were killed themselves: thaw, unmount, detach, remove.

    python -m tools.faults.sweep            every fault whose guard is dead
    python -m tools.faults.sweep BASE       that one (fault.py does this when it finds its guard dead)

Needs root. Faults whose guard lives are left alone. Prints what could not be cleaned up, and exits with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tools.faults import cleaning, guard


def abandoned() -> list[Path]:
    """Base folders in the temporary folder whose guard is dead or dying."""
    return sorted(path for path in Path(tempfile.gettempdir()).glob(f"{cleaning.PREFIX}*") if path.is_dir())


def sweep(base: Path) -> list[str]:
    """Clean up one fault, if its guard is dead; what is left, a sentence each."""
    try:
        handle = guard.lock(base)
    except OSError:
        return []  # its guard lives, or it has gone meanwhile
    try:
        return cleaning.clean(base)
    finally:
        os.close(handle)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.faults.sweep",
        description="Clean up faults whose guard process is dead. Needs root.",
    )
    parser.add_argument(
        "base", nargs="*", type=Path, help="base folders (default: all in the temporary folder)"
    )
    left = [problem for base in parser.parse_args(arguments).base or abandoned() for problem in sweep(base)]
    for problem in left:
        print(problem, file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
