"""The long forms of all that `make test` runs short; keeps what came of them in docs/soak.md.

    python tools/soak.py                        all of it: hours
    python tools/soak.py --only benches         tests, benches or crashes
    python tools/soak.py --only benches log_call agent_cpu
    python tools/soak.py --table                only write docs/soak.md anew, from tools/bench/results

Each part leaves a result (date, commit, machine in words, figures) in tools/bench/results, replacing its last one;
the page is made from these files and from nothing else. Exit code 1 if a test failed or a bar was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench import harness

ROOT = harness.ROOT
RESULTS = ROOT / "tools" / "bench" / "results"
PAGE = ROOT / "docs" / "soak.md"
BENCHES = (
    *("log_call", "sections", "call_recorder", "log_tail", "log_faults", "process_cost"),
    *(
        "agent_cpu",
        "agent_rest",
        "agent_children",
        "children_first",
        "bytes_per_point",
        "wal_cpu",
        "ship_cpu",
    ),
    *("online", "ingest", "store", "sync", "chaos", "callbacks"),
    *("hangs", "why", "stop_save", "preflight", "detectors"),
    *("page", "ui", "chart_http", "band", "media", "console"),
)
CRASH = ROOT / "tools" / "faults" / "crash.py"
CRASH_SEEDS, CRASH_SECONDS = 20, 60
PARTS = ("benches", "tests", "crashes")


def run_bench(name: str) -> bool:
    """The full form of one bench; its report becomes the result."""
    done = subprocess.run(
        [sys.executable, f"tools/bench/{name}.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        harness.say(f"{name} ended with {done.returncode} and no report.")
        return False
    keep(name, report)
    return done.returncode == 0


def run_tests() -> bool:
    """All tests but those of benches, at full length."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "tests.xml"
        begin = time.monotonic()
        command = ["-m", "pytest", "--pace", "1", "-m", "not bench", "-q", f"--junitxml={told}"]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        found = head("tests")
        found["seconds"] = round(time.monotonic() - begin)
        if told.exists():
            suite = ElementTree.parse(told).getroot().find("testsuite")
            counts = {} if suite is None else suite.attrib
            found |= {name: int(counts.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        found["reached"] = done.returncode == 0
    keep("tests", found)
    return done.returncode == 0


def run_crashes() -> bool:
    """Random crashes at fail points, one seed after the other."""
    if not CRASH.exists():
        harness.say("No tools/faults/crash.py here: left out.")
        return True
    begin, failed = time.monotonic(), []
    for seed in range(CRASH_SEEDS):
        command = [str(CRASH.relative_to(ROOT)), "--seed", str(seed), "--seconds", str(CRASH_SECONDS)]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        if done.returncode:
            failed.append(seed)
    found = {**head("crashes"), "seeds": CRASH_SEEDS, "failed": failed}
    keep("crashes", {**found, "seconds": round(time.monotonic() - begin), "reached": not failed})
    return not failed


def head(name: str) -> dict[str, Any]:
    """What every result says about itself, as the report of a bench does."""
    return harness.Report(name, "full").head


def keep(name: str, result: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    write_page()


# ---- the page --------------------------------------------------------------------------------------------------


def write_page() -> None:
    """docs/soak.md from the results that are there."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    order = [name for name in ("tests", "crashes", *BENCHES) if name in results]
    lines = [
        "# Long runs",
        "",
        "Made by `make soak` (`tools/soak.py`) from `tools/bench/results`; do not edit.",
        "",
    ]
    for name in order:
        lines += section(name, results[name])
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines).rstrip() + "\n")


def section(name: str, result: dict[str, Any]) -> list[str]:
    """One part: what it is, when and where it ran, what came of it."""
    load = f", load {result['load_before']:g}"
    if "load_after" in result:
        load += f" to {result['load_after']:g}"
    if "floor_ns" in result:
        load += ", floor of `log_call` " + " to ".join(f"{ns:g}" for ns in result["floor_ns"]) + " ns"
    when = result["at"].replace("T", " ").replace("Z", " UTC")
    lines = [f"## {name}", ""]
    lines.append(
        f"{when}, commit `{result['commit']}`, Python {result['python']}, {result['machine']}{load}."
    )
    lines.append("")
    if "figures" not in result:
        told = ", ".join(f"{key} {value}" for key, value in result.items() if key in TOLD)
        return [*lines, f"{'Passed' if result['reached'] else 'FAILED'}: {told}.", ""]
    lines += ["| figure | value | beside | ratio | bar | |", "| --- | ---: | ---: | ---: | --- | --- |"]
    lines += [row(figure) for figure in result["figures"]]
    for what, reason in (result.get("left_out") or {}).items():
        lines.append(f"| {what} | left out: {reason} | | | | |")
    return [*lines, ""]


TOLD = ("tests", "failures", "errors", "skipped", "seeds", "failed", "seconds")


def row(figure: dict[str, Any]) -> str:
    beside = next((f"{name} {figure[name]:g}" for name in ("floor", "well") if name in figure), "")
    ratio = f"{figure['ratio']:g}" if "ratio" in figure else ""
    verdict = "" if "bar" not in figure else "reached" if figure["reached"] else "**missed**"
    cells = (
        figure["what"],
        f"{figure['value']:g} {figure['unit']}",
        beside,
        ratio,
        figure.get("bar", ""),
        verdict,
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--table", action="store_true", help="write docs/soak.md anew, run nothing")
    parser.add_argument(
        "bench", nargs="*", metavar="BENCH", help=f"with --only benches: {', '.join(BENCHES)}"
    )
    given = parser.parse_args()
    if wrong := set(given.bench) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(wrong))}")
    if given.table:
        write_page()
        return 0
    parts = [given.only] if given.only else PARTS
    passed = True
    for part in parts:
        if part == "benches":
            for name in given.bench or BENCHES:
                harness.say(f"== {name}")
                passed &= run_bench(name)
        elif part == "tests":
            passed &= run_tests()
        else:
            passed &= run_crashes()
    harness.say(f"{'passed' if passed else 'FAILED'}: see {os.path.relpath(PAGE, ROOT)}")
    return 0 if passed else 1


if __name__ == "__main__":
    harness.use_environment()
    sys.exit(main())
