"""`logclient sync`: offline or interrupted runs go to a collector."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import click

from logclient.errors import BadArgument

from ..wire import credentials
from ..wire.messages import DELETED, NotTaken
from . import INTERRUPTED, MISSING, NO, OK, PARTIAL, screen
from . import sync_nodes as uploads
from . import sync_workers as uploading
from .options import amount, run_folder, with_json
from .sync_nodes import Skipped
from .sync_workers import Job, Plan, Pool
from .text import duration, plural, safe, short_count, size

_LOOK_S = 0.2
_STOP_S = 3.0
_BAR_AFTER_S = 0.6
_MAX_ROWS = 50

_COLOURS = {
    uploading.SENT: "green",
    uploading.THERE: "green",
    uploading.OUTDATED: "yellow",
    uploading.PARTIAL: "yellow",
    uploading.FAILED: "red",
    uploading.STOPPED: "yellow",
}


@click.command(
    "sync",
    epilog="Exit codes: 0 all is there, 1 nothing could be sent, 3 there is no such folder, 4 a part, "
    "130 interrupted (run it again to go on).",
)
@click.argument("folders", nargs=-1, metavar="[FOLDER]...")
@click.option(
    "--server",
    default="",
    metavar="ADDRESS",
    help="grpc://HOST:PORT, or grpcs:// with TLS; default LOGCLIENT_SERVER, else the config file.",
)
@click.option(
    "--token-file",
    default="",
    metavar="FILE",
    help="File with the token; default LOGCLIENT_TOKEN, else the config file.",
)
@click.option("--watch", is_flag=True, help="Go on, and send what comes, until Ctrl-C.")
@amount("--every every_s", click.FloatRange(0.1), 5.0, "SECONDS", "With --watch: how often to look.")
@click.option("--dry-run", is_flag=True, help="Ask what is missing there, and send nothing.")
@click.option("--revive", is_flag=True, help="Take runs back that were deleted there.")
@amount("--jobs", click.IntRange(1, 64), 4, "N", "How many folders side by side.")
@amount(
    "--timeout timeout_s",
    click.FloatRange(0.1),
    60.0,
    "SECONDS",
    "Give up when nothing moved for so long: a run, or all where no collector answers.",
)
@with_json
def command(
    folders: tuple[str, ...],
    server: str,
    token_file: str,
    watch: bool,
    every_s: float,
    dry_run: bool,
    revive: bool,
    jobs: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send runs to a collector: what it has not yet, each record once, however often this is called.

    A FOLDER holds runs, is the folder of one, or a copy of it; default LOGCLIENT_DIR, else ./logclient-runs. It may be
    written to meanwhile, and sent by several syncs at once. What is interrupted goes on with the next call.
    RECORDS are all that lie there, SENT those of them that the collector had not; host metrics and captured output
    count as well.

    \b
    logclient sync --server grpc://collector:7788
    logclient sync /data/runs/mlp-3 --dry-run
    logclient sync /shared/runs --watch          for nodes that have no network
    """
    access = credentials.find(server, token_file)
    if access is None:
        raise BadArgument(
            "sync: no server is named; give --server grpc://HOST:PORT, set LOGCLIENT_SERVER, or write it into "
            "~/.config/logclient/config.toml"
        )
    if watch and dry_run:
        raise BadArgument("--watch and --dry-run: give one of them")
    wanted = list(folders) or [run_folder(None)]
    plan = Plan(access, f"sync {version('logclient')}", timeout_s, revive)
    if watch:
        _watch(wanted, plan, jobs, every_s, as_json)
        return
    found, skipped = uploads.find(wanted)
    if dry_run:
        code = _dry_run(found, skipped, plan, as_json)
    else:
        made = [Job(upload) for upload in found]
        begun = time.monotonic()
        is_interrupted = not _run(Pool(plan, made, jobs))
        code = _print_result(made, skipped, time.monotonic() - begun, str(access.address), as_json)
        code = INTERRUPTED if is_interrupted else code
    if code:
        raise click.exceptions.Exit(code)


# ---- sending ------------------------------------------------------------------------------------------------


def _run(pool: Pool) -> bool:
    """Send until all are done; False after Ctrl-C."""
    try:
        with _bar(pool) as draw:
            while not pool.wait(_LOOK_S):
                draw()
    except KeyboardInterrupt:
        pool.stop(_STOP_S)
        return False
    return True


@contextmanager
def _bar(pool: Pool) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal and this takes a while."""
    import sys

    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    task = bar.add_task("sending", total=1, counts="", rate="")
    begun = time.monotonic()
    is_started = False

    def draw() -> None:
        nonlocal is_started
        seconds = time.monotonic() - begun
        if seconds < _BAR_AFTER_S:
            return
        jobs = pool.jobs
        done, left = sum(job.progress.records for job in jobs), sum(job.left for job in jobs)
        over = sum(bool(job.outcome) for job in jobs)
        trouble = next((job.progress.error for job in jobs if not job.outcome and job.progress.error), "")
        bar.update(
            task,
            description=f"sending {over}/{len(jobs)} nodes",
            completed=done,
            total=max(1, left),
            counts=f"{short_count(done)}/{short_count(left)} records",
            rate=safe(trouble, 60) if trouble else f"{short_count(round(done / seconds))}/s",
        )
        if not is_started:
            bar.start()
            is_started = True

    try:
        yield draw
    finally:
        if is_started:
            bar.stop()


def _watch(folders: list[str], plan: Plan, count: int, every_s: float, as_json: bool) -> None:
    """Round after round, until Ctrl-C: what changed since it was sent last."""
    done: dict[tuple[str, str], tuple[object, ...]] = {}
    printed: dict[str, str] = {}
    while True:
        found, skipped = uploads.find(folders)
        for none in skipped:
            _print_once(printed, none.path, none.reason, as_json)
        jobs = []
        for upload in found:
            signature = upload.signature()
            if done.get((upload.run, upload.node)) != signature or upload.shm_dir:
                done[upload.run, upload.node] = signature
                jobs.append(Job(upload))
        begun = time.monotonic()
        is_interrupted = not _run(Pool(plan, jobs, count))
        for job in jobs:
            if not job.is_good:
                done.pop((job.upload.run, job.upload.node), None)
            if not job.is_good or job.progress.records or job.outcome == uploading.OUTDATED:
                _print_round(job, printed, as_json)
        if is_interrupted:
            raise click.exceptions.Exit(INTERRUPTED)
        time.sleep(max(0.0, begun + every_s - time.monotonic()))


def _print_round(job: Job, printed: dict[str, str], as_json: bool) -> None:
    key = f"{job.upload.run}/{job.upload.node}"
    if job.is_good:
        if job.outcome == uploading.OUTDATED:
            _print_once(printed, key, job.progress.outdated, as_json)
        else:
            printed.pop(key, None)
        if not job.progress.records:
            return
        if as_json:
            screen.print_json_line(_as_dict(job))
        else:
            screen.show(screen.line(f"{safe(job.upload.run)}: {plural(job.progress.records, 'record')} sent"))
    else:
        _print_once(printed, key, "; ".join(job.reasons), as_json)


def _print_once(printed: dict[str, str], what: str, reason: str, as_json: bool) -> None:
    if printed.get(what) != reason:
        printed[what] = reason
        if as_json:
            screen.print_json_line({"path": what, "reason": reason})
        else:
            screen.show(screen.line(f"{safe(what)}: ", (safe(reason), "yellow")))


# ---- printing -----------------------------------------------------------------------------------------------


def _dry_run(found: list[uploads.Upload], skipped: list[Skipped], plan: Plan, as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    for upload in found:
        row: dict[str, Any] = {"run": upload.run, "node": upload.node, "folders": upload.folders}
        try:
            row["records"], row["missing"] = uploading.ask(upload, plan)
            row["reason"] = ""
        except NotTaken as trouble:
            row["reason"] = str(trouble)
            # of a deleted run the collector does not report how much of it is still there
            if plan.revive and trouble.reason == DELETED:
                row["records"] = row["missing"] = uploading.count(upload)
                row["reason"], row["would_revive"] = "", True
        rows.append(row)
    if as_json:
        screen.print_json({"server": str(plan.access.address), "uploads": rows, "skipped": _dicts(skipped)})
    else:
        for row in rows:
            text = row["reason"] or f"{row['missing']:,} of {plural(row['records'], 'record')} would be sent"
            if row.get("would_revive"):
                text = f"was deleted there and would be brought back, {plural(row['records'], 'record')} at most sent"
            screen.show(screen.line(safe(row["run"]), ("  " + safe(text), "red" if row["reason"] else "dim")))
        _print_skipped(skipped)
    good = sum(not row["reason"] for row in rows)
    return _code(good, len(rows) - good, skipped)


def _print_result(jobs: list[Job], skipped: list[Skipped], seconds: float, server: str, as_json: bool) -> int:
    if as_json:
        screen.print_json(
            {"server": server, "uploads": [_as_dict(job) for job in jobs], "skipped": _dicts(skipped)}
        )
    else:
        _print(jobs, skipped, seconds, server)
    good = sum(job.is_good for job in jobs)
    part = sum(job.outcome == uploading.PARTIAL for job in jobs)
    return PARTIAL if part else _code(good, len(jobs) - good, skipped)


def _code(good: int, bad: int, skipped: list[Skipped]) -> int:
    if not (bad or skipped):
        return OK
    if good:
        return PARTIAL
    return MISSING if not bad and all(each.is_missing for each in skipped) else NO


def _as_dict(job: Job) -> dict[str, Any]:
    progress = job.progress
    return {
        "run": job.upload.run,
        "name": job.upload.name,
        "node": job.upload.node,
        "folders": job.upload.folders,
        "outcome": job.outcome,
        "reasons": job.reasons,
        "records": job.total,
        "already": progress.already,
        "sent": progress.records,
        "refused": progress.refused_records,
        "points": progress.points,
        "bytes": progress.bytes,
        "seconds": job.seconds,
    }


def _dicts(skipped: list[Skipped]) -> list[dict[str, str]]:
    return [{"path": each.path, "reason": each.reason} for each in skipped]


def _print(jobs: list[Job], skipped: list[Skipped], seconds: float, server: str) -> None:
    if not jobs and not skipped:
        screen.show(screen.line(("nothing to sync: there are no runs", "dim")))
        return
    shown = jobs if len(jobs) <= _MAX_ROWS else [job for job in jobs if not job.is_good]
    if shown:
        table = screen.table("RUN", "NODE", "RECORDS", "SENT", "OUTCOME", right=(2, 3), grow=0)
        for job in shown[:_MAX_ROWS]:
            table.add_row(
                screen.line(safe(job.upload.name)),
                screen.line((safe(job.upload.node, 16), "dim")),
                screen.line(short_count(job.total)),
                screen.line(short_count(job.progress.records)),
                screen.line((job.outcome, _COLOURS[job.outcome])),
            )
        screen.show(table)
        _print_reasons(shown[:_MAX_ROWS])
    _print_skipped(skipped)
    sent, bytes = sum(job.progress.records for job in jobs), sum(job.progress.bytes for job in jobs)
    good = sum(job.is_good for job in jobs)
    if jobs and all(job.outcome == uploading.THERE for job in jobs):
        records = plural(sum(job.total for job in jobs), "record")
        also = f"; what these folders contain of their runs was sent ({size(bytes)})" if bytes else ""
        screen.show(screen.line(f"nothing to send: all {records} were already there, at {server}{also}"))
        return
    took = f"{duration(seconds)}, {short_count(round(sent / max(seconds, 1e-3)))} records/s"
    screen.show(
        screen.line(
            f"{good} of {plural(len(jobs), 'node')} complete at {server}: "
            f"{plural(sent, 'record')} sent ({size(bytes)}) in {took}"
        )
    )


def _print_reasons(jobs: list[Job]) -> None:
    """Each once: where a collector does not answer, all have the same."""
    whose: dict[str, list[str]] = {}
    for job in jobs:
        for reason in job.reasons:
            whose.setdefault(reason, []).append(job.upload.run)
    for reason, runs in whose.items():
        who = safe(runs[0]) if len(runs) == 1 else f"{len(runs)} nodes"
        screen.show(screen.line("  ! ", f"{who}: {safe(reason)}"))


def _print_skipped(skipped: list[Skipped]) -> None:
    if skipped:
        screen.show(screen.line((f"not sent ({len(skipped)}):", "dim")))
        for each in skipped:
            screen.show(screen.line("  ", safe(each.path), ("  " + safe(each.reason), "dim")))
