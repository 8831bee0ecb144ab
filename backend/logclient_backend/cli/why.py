"""`logclient why`: who is stuck, where in its code, and in which state the kernel has it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import click

from logclient.errors import BadArgument, NoRun

from ..observe import elsewhere, ranks, report, verdict
from ..observe.described import described, named
from ..observe.report import Job
from ..observe.verdict import CANNOT_TELL, Verdict
from ..runs import live
from ..runs.live import LiveShmDir
from . import Problem, screen, why_calls, why_page
from .options import with_dir, with_json, with_token_file
from .text import safe

NOT_STUCK, STUCK, UNSURE = 0, 3, 4
_ENDED = "the run has ended"
Look = Callable[[], Job | None]  # one look at all processes; None: there is nobody left


@click.command(
    "why", epilog="Exit codes: 0 not stuck, 3 stuck, 4 cannot tell; with --follow, of the last verdict."
)
@click.argument("words", nargs=-1, metavar="[RUN | FILES]")
@click.option("--pid", "pids", type=int, multiple=True, metavar="PID", help="Any process; may be repeated.")
@click.option("--local", is_flag=True, help="This host's ranks alone; with --json on one line, for --merge.")
@click.option(
    "--merge",
    is_flag=True,
    help="One verdict from the --json output of several hosts; `-` is standard input.",
)
@click.option(
    "--server",
    metavar="URL",
    help="All nodes of a run, as a collector has them; `-`: that of LOGCLIENT_SERVER or of the config file.",
)
@with_token_file
@click.option(
    "-f", "--follow", is_flag=True, help="Look again and again; one line for each change, until the run ends."
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between looks with --follow.",
)
@click.option(
    "--apart",
    "apart_s",
    type=click.FloatRange(0.1, 60),
    default=ranks.APART_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between the two looks at each process.",
)
@click.option(
    "--late-after",
    "floor_s",
    type=click.FloatRange(0.1),
    default=ranks.FLOOR_S,
    show_default=True,
    metavar="SECONDS",
    help="No rank is late before; a run with slow steps has a longer limit of its own.",
)
@click.option(
    "--calls",
    "calls_of",
    type=int,
    metavar="PID|RANK",
    help="The last calls of that process, live or killed, where it records them.",
)
@with_dir
@with_json
def command(
    words: tuple[str, ...],
    pids: tuple[int, ...],
    local: bool,
    merge: bool,
    server: str | None,
    token_file: str,
    follow: bool,
    every_s: float,
    apart_s: float,
    floor_s: float,
    calls_of: int | None,
    dir: str | None,
    as_json: bool,
) -> None:
    """Say why a run, or some processes, do not get on: the verdict first, then the evidence.

    RUN is an id, a unique part of one, or a name of a live run on this host; without it, the only one there is. Nothing
    is stopped or changed: stacks are read from outside. Values of variables are never read. With --server nobody is
    looked at now: it has what the observers on all nodes saw last.

    \b
    logclient why
    logclient why mlp --follow
    logclient why --pid 4711 --pid 4712
    logclient why mlp --calls 3
    srun --overlap --ntasks-per-node=1 -o 'why.%N.json' logclient why mlp --local --json
    logclient why --merge why.*.json
    logclient why mlp --server http://collector:7789
    """  # fmt: skip
    with _no_run_cannot_be_told():
        if calls_of is not None:
            if pids or local or merge or follow or server is not None or len(words) > 1:
                raise BadArgument("--calls takes one PID or rank, and at most a run beside it")
            why_calls.show(words[0] if words else None, calls_of, dir, as_json=as_json)
            return
        if server is not None:
            if pids or local or merge or len(words) > 1:
                raise BadArgument("--server takes at most a run beside it: no --pid, --local or --merge")
            look = _at_server(server, token_file, words[0] if words else None)
        else:
            if token_file:
                raise BadArgument("--token-file is for --server: give that too")
            look = _look(words, pids, local, merge, follow, apart_s, floor_s)
        if follow:
            last = _follow(look, every_s, as_json)
        else:
            job = look()
            if job is None:
                raise NoRun("The run has ended.")
            last = job.verdict
            if as_json:
                (screen.print_json_line if local else screen.print_json)(described(job))
            else:
                screen.show(*why_page.page(job, is_merged=merge))
        raise click.exceptions.Exit(_exit_code(last))


@contextlib.contextmanager
def _no_run_cannot_be_told() -> Iterator[None]:
    """Give the exit code of *cannot tell* where there is no run to look at: 3 means that one is stuck."""
    try:
        yield
    except NoRun as error:
        raise Problem(str(error), UNSURE) from error


def _exit_code(found: Verdict | None) -> int:
    if found is None or found.kind == CANNOT_TELL:
        return UNSURE
    return STUCK if found.is_stuck else NOT_STUCK


def _look(
    words: tuple[str, ...],
    pids: tuple[int, ...],
    local: bool,
    merge: bool,
    follow: bool,
    apart_s: float,
    floor_s: float,
) -> Look:
    """Return the function that looks once, from whichever source was asked for."""
    if merge:
        if pids or local or follow:
            raise BadArgument("--merge reads files: it goes with none of --pid, --local and --follow")
        if not words:
            raise BadArgument("--merge takes the files to read, `-` for standard input")
        return lambda: merged(words)
    if len(words) > 1:
        raise BadArgument(f"one run at a time: {', '.join(words)}; files are read with --merge")
    if pids:
        if words:
            raise BadArgument("a run or --pid, not both")
        return lambda: report.put_together([report.of_pids(pids, apart_s=apart_s)])
    live_dir = _find(words[0] if words else None)
    if not follow:
        return lambda: report.put_together([report.of_run(live_dir, apart_s=apart_s, floor_s=floor_s)])
    return lambda: _again(live_dir, apart_s, floor_s)


def _at_server(server: str, token_file: str, wanted: str | None) -> Look:
    """Return the function that asks a collector once."""
    from ..remote.source import ServerSource  # requests and grpc: the other sources do without

    source = ServerSource(server, token_file=token_file)
    stored = source.run(wanted)

    def look() -> Job | None:
        stored.look_again()
        run = stored.view()
        if run.state.is_over and run.state.name not in ("late", "lost"):
            return None
        return elsewhere.job_of(run, source.node_reports(stored.id))

    return look


def merged(names: Sequence[str]) -> Job:
    """Read the reports of several hosts and put them together."""
    found = []
    for name in names:
        shown = "standard input" if name == "-" else name
        if name == "-":
            data = sys.stdin.buffer.read(report.MAX_BYTES + 1)
        else:
            with open(name, "rb") as file:
                data = file.read(report.MAX_BYTES + 1)
        if len(data) > report.MAX_BYTES:
            raise BadArgument(f"{shown} has more than {report.MAX_BYTES >> 20} MiB")
        found += [(shown, each) for each in report.reports_in(data, shown)]
    report.check_together(found)
    return report.put_together([each for _, each in found])


def _again(live_dir: LiveShmDir, apart_s: float, floor_s: float) -> Job | None:
    """Look at a run once more: its lane files first, and its processes where one is late."""
    fresh = live.look(live_dir.shm_dir.path)
    if fresh is None or fresh.folder != live_dir.folder:
        return None
    if not any(process.is_open for process in fresh.processes):
        return None
    records = ranks.records(fresh, floor_s)
    if not any(each.is_late for each in records):
        return report.put_together([report.Report(report.here(fresh), records)])
    return report.put_together([report.of_run(fresh, apart_s=apart_s, floor_s=floor_s)])


def _follow(look: Look, every_s: float, as_json: bool) -> Verdict | None:
    """Print a line for each change of the verdict, until nobody is left; return the last one."""
    last: Verdict | None = None
    while (job := look()) is not None:
        found = job.verdict
        if last is None or (found.kind, found.blamed) != (last.kind, last.blamed):
            _print_line(found, job, as_json)
        last = found
        if found.kind == verdict.GONE and all(verdict.is_gone(each) for each in job.processes):
            break
        time.sleep(every_s)
    _print_line(None, None, as_json)
    return last


def _print_line(found: Verdict | None, job: Job | None, as_json: bool) -> None:
    """Print one line: a verdict, or that the run has ended."""
    now_ns = time.time_ns()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now_ns / 1e9))
    if as_json:
        line = {"time": stamp, "time_ns": now_ns, "ended": found is None}
        if found is not None and job is not None:
            by_key = {each.key: each for each in job.processes}
            line |= {
                "verdict": found.kind,
                "stuck": found.is_stuck,
                "text": found.text,
                "pids": list(found.pids),
            }
            line["blamed"] = [named(by_key[key]) for key in found.blamed]
        screen.print_json_line(line)
    else:
        text = _ENDED if found is None else f"{found.kind}: {safe(found.text)}"
        click.echo(f"{stamp}  {text}")


def _find(run: str | None) -> LiveShmDir:
    there = [each for each in live.scan() if each.processes]
    found = [each for each in there if run is None or run in each.run_id or run == each.name]
    if len(found) > 1:  # those of which nobody lives any more are left for `recover`
        found = [each for each in found if any(process.is_open for process in each.processes)] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.run_id for each in found or there) or "none"
    if not found:
        raise NoRun(
            f"No live run on this host is called {run!r}; there are: {names}."
            if run
            else "No run is live on this host."
        )
    raise NoRun(f"More than one run is meant: {names}. Name one.")
