"""`logclient wal`: the files of a run, verified, dumped, repaired."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from logclient.errors import Corrupt, NoRun, Unsupported

from ..runs import folder, live
from ..wal import repair as mending
from ..wal.documents import DocumentFile
from ..wal.files import REAL
from ..wal.reader import list_stems
from ..wal.repair import FolderReport, SegmentReport
from ..wal.segment import parse_name
from . import screen
from .options import all_runs, with_dir, with_json
from .text import iso, plural, safe, size


@click.group("wal")
def command() -> None:
    """Verify, dump or repair the files of a run.

    WHAT is a run (an id, a part of one, a name), the folder of one, or the folder of one of its nodes.

    \b
    logclient wal verify mlp
    logclient wal dump runs/mlp/8f3a01c2d4e5b697/2fc5424afbfca81c-000001.seg
    logclient wal repair mlp
    """


@command.command(
    "verify", epilog="Exit codes: 0 sound, 1 damage found, 3 no such run or folder, 4 not all can be read."
)
@click.argument("what", metavar="WHAT")
@with_dir
@with_json
def verify(what: str, dir: str | None, as_json: bool) -> None:
    """Read and check every block of every segment, and the documents.

    A torn tail of an open segment is no damage: it is being written, or was never promised. Damage is printed with
    the records and steps that are lost with it.

    \b
    logclient wal verify mlp
    """
    nodes = _nodes(what, dir)
    busy = _live_segments(nodes)
    reports = []
    files = sum(len(list_stems(REAL, node)) for node in nodes)
    with screen.progress("verifying", files) as advance:
        for node in nodes:
            reports.append((node, mending.verify(node), _documents(node)))
            advance(len(reports[-1][1].segments))
    damaged = sum(len(segment.damage) for _, report, _ in reports for segment in report.segments)
    unread = [segment for _, report, _ in reports for segment in report.segments if segment.problem]
    broken = [trouble for _, _, trouble in reports if trouble]
    odd = [line for node in nodes for line in _odd_documents(node)]
    if as_json:
        screen.print_json(
            {
                "sound": not (damaged or unread or broken or odd),
                "odd_documents": odd,
                "nodes": [_report_dict(node, report, trouble) for node, report, trouble in reports],
            }
        )
    else:
        for node, report, trouble in reports:
            for thing in _page(node, report, trouble, busy):
                screen.show(thing)
        for line in odd:
            screen.show(screen.line(("  ! " + safe(line), "yellow")))
    if damaged or broken:
        raise click.exceptions.Exit(1)
    if unread or odd:
        raise click.exceptions.Exit(4)


@command.command("dump", epilog="Exit codes: 0 printed, 1 something in it does not check, 3 no such file.")
@click.argument("segment", metavar="SEGMENT")
@with_json
def dump(segment: str, as_json: bool) -> None:
    """Print the blocks of one segment as they lie, the bad pieces too. SEGMENT is a file .wal or .seg.

    \b
    logclient wal dump runs/mlp/8f3a01c2d4e5b697/2fc5424afbfca81c-000001.seg
    """
    if parse_name(os.path.basename(segment)) is None:
        raise NoRun(f"{segment} is no segment: its name is not <16 hex digits>-<number>.wal or .seg")
    for line in mending.dump(segment):
        if as_json:
            screen.print_json_line(
                {"offset": line.offset, "length": line.length, "kind": line.kind, "text": line.text}
            )
        else:
            kind = click.style(f"{line.kind:<8}", fg="cyan")
            click.echo(f"{line.offset:>10,}  {line.length:>9,}  {kind}  {safe(line.text)}")
    scan = mending.verify(os.path.dirname(os.path.abspath(segment)))
    found = [report for report in scan.segments if report.name == os.path.basename(segment)]
    if any(report.damage for report in found):
        raise click.exceptions.Exit(1)


@command.command(
    "repair", epilog="Exit codes: 0 repaired or sound, 3 no such run or folder, 4 something had to be left."
)
@click.argument("what", metavar="WHAT")
@with_dir
@with_json
def repair(what: str, dir: str | None, as_json: bool) -> None:
    """Cut torn tails, and rewrite damaged segments without what is lost, which is noted in them.

    Nothing that held records is deleted: the bytes of a damaged segment are kept as NAME.broken. What a live run
    still writes is left alone.

    \b
    logclient wal repair mlp
    """
    nodes = _nodes(what, dir)
    busy = _live_segments(nodes)
    done: list[tuple[str, mending.Repair]] = []
    with screen.progress("repairing", len(nodes)) as advance:
        for node in nodes:
            names = busy.get(os.path.realpath(node), set())
            done += [(node, each) for each in mending.repair(node, is_live=names.__contains__)]
            advance(1)
    if as_json:
        screen.print_json(
            {
                "repairs": [
                    {"node": n, "file": r.name, "action": r.action, "detail": r.detail} for n, r in done
                ]
            }
        )
    elif not done:
        click.echo("nothing to repair")
    else:
        for _, each in done:
            action = click.style(each.action, fg="yellow" if each.action == "left" else "cyan")
            click.echo(f"{safe(each.name)}  {action}: {safe(each.detail)}")
    if any(each.action == "left" for _, each in done):
        raise click.exceptions.Exit(4)


def _nodes(what: str, dir: str | None) -> list[str]:
    """The node folders that are meant: of a path, or of a run."""
    if os.path.isdir(what) and (os.sep in what or not _is_run(what, dir)):
        if list_stems(REAL, what) or DocumentFile(what).load() is not None:
            return [os.path.abspath(what)]
        nodes = [node.path for node in folder.load(os.path.basename(what), os.path.abspath(what)).nodes]
        if not nodes:
            raise NoRun(f"{what} holds neither segments nor nodes of a run")
        return nodes
    base, runs = all_runs(dir)
    for run in runs:  # a folder whose documents are all damaged is still worth a look
        if run.name == what and run.nodes:
            return [node.path for node in run.nodes]
    return [node.path for node in folder.resolve(runs, what, base).nodes]


def _is_run(what: str, dir: str | None) -> bool:
    try:
        base, runs = all_runs(dir)
        folder.resolve(runs, what, base)
    except NoRun:
        return False
    return True


def _live_segments(nodes: list[str]) -> dict[str, set[str]]:
    """Names of segments that an agent still has in shared memory, by node folder."""
    wanted = {os.path.realpath(node) for node in nodes}
    found: dict[str, set[str]] = {}
    for live_dir in live.scan():
        where = os.path.realpath(live_dir.node_folder) if live_dir.node_folder else ""
        if where in wanted:
            stems = list_stems(REAL, live_dir.shm_dir.path)
            found[where] = {f"{stem.name}{suffix}" for stem in stems for suffix in (".wal", ".seg")}
    return found


def _documents(node: str) -> str:
    """Return what is wrong with the documents; empty: nothing."""
    try:
        if DocumentFile(node).load() is None:
            return "no documents, or both versions are damaged"
    except Corrupt as error:
        return str(error)
    return ""


def _odd_documents(node: str) -> list[str]:
    """Return a sentence for each file under a name of documents that is no regular file."""
    documents = DocumentFile(node)
    try:
        documents.load()
    except Unsupported:
        pass
    return [f"{os.path.join(node, name)} is passed over: {why}" for name, why in documents.odd.items()]


def _report_dict(node: str, report: FolderReport, trouble: str) -> dict[str, Any]:
    return {
        "folder": node,
        "documents": trouble or "sound",
        "segments": [
            {
                "name": segment.name,
                "sealed": segment.is_sealed,
                "bytes": segment.size_bytes,
                "created": iso(segment.created_ns),
                "records": segment.records,
                "gaps": segment.gaps,
                "torn_bytes": sum(piece.length for piece in segment.torn),
                "damage": [
                    {
                        "offset": damage.offset,
                        "length": damage.length,
                        "reason": damage.reason,
                        "stream": damage.stream.hex() if damage.stream else None,
                        "first_seq": damage.first_seq,
                        "last_seq": damage.last_seq,
                        "first_step": damage.first_step,
                        "last_step": damage.last_step,
                    }
                    for damage in segment.damage
                ],
                "problem": segment.problem,
            }
            for segment in report.segments
        ],
        "leftovers": report.leftovers,
    }


def _page(node: str, report: FolderReport, trouble: str, busy: dict[str, set[str]]) -> Iterator[Any]:
    records = sum(span.records for span in report.spans.values())
    yield screen.line((safe(node), "bold"), (f"  {plural(records, 'record')}", "dim"))
    if report.segments:
        table = screen.table("", "SEGMENT", "BYTES", "RECORDS", "GAPS", "VERDICT", right=(2, 3, 4))
        names = busy.get(os.path.realpath(node), set())
        for segment in report.segments:
            table.add_row(
                "",
                segment.name,
                size(segment.size_bytes),
                f"{segment.records:,}",
                str(segment.gaps),
                _verdict(segment, names),
            )
        yield table
    if trouble:
        yield screen.line(("  ! documents: " + safe(trouble), "red"))
    for segment in report.segments:
        for damage in segment.damage:
            yield screen.line(("  ! " + safe(str(damage)), "red"))
        if segment.problem:
            yield screen.line(("  ! " + safe(f"{segment.name}: {segment.problem}"), "yellow"))
    if report.leftovers:
        yield screen.line((f"  left by a crash, harmless: {', '.join(map(safe, report.leftovers))}", "dim"))


def _verdict(segment: SegmentReport, busy: set[str]) -> Any:
    if segment.problem:
        return screen.line(("not read", "yellow"))
    if segment.damage:
        return screen.line((plural(len(segment.damage), "damaged piece"), "red"))
    if segment.torn:
        live_one = segment.name in busy
        return screen.line(("being written" if live_one else "torn tail, nothing promised is lost", "cyan"))
    return screen.line(("sound" if segment.is_sealed else "sound, open", "green"))
