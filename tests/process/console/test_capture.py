"""What programs print, captured: their streams are as without it, and what was written is there to be read."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient_backend.runs import folder
from logclient_backend.runs.console import ConsoleLine
from logclient_backend.runs.view import view
from tests.conftest import Pace
from tools.collector import Collector

from ..agents import nothing_left
from ..disturbed import ROOT, wait_until

PATIENCE_S = 90.0
HEAD = """
import os, signal, sys, threading, time
import logclient
run = logclient.init(id="printed", quiet=True)
"""


def words_of(source: str, *words: object) -> list[str]:
    return [sys.executable, "-c", HEAD + textwrap.dedent(source), *map(str, words)]


def environment(**env: str) -> dict[str, str]:
    return {**os.environ, "LOGCLIENT_CONSOLE": "tee", "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}", **env}


def program(
    source: str, *words: object, code: int = 0, is_last: bool = True, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, and its agent; standard output and error are pipes."""
    done = subprocess.run(
        words_of(source, *words), env=environment(**env), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    if is_last:
        nothing_left(PATIENCE_S)
    return done


def lines(run_dir: Path) -> list[ConsoleLine]:
    return list(logclient.read(run_dir)["printed"].console)


def texts(run_dir: Path, stream: str = "") -> list[str]:
    return [line.text for line in lines(run_dir) if stream in ("", line.stream)]


def raw(run_dir: Path, stream: str) -> str:
    pieces = logclient.read(run_dir)["printed"].console.pieces()
    return "".join(piece.text for piece in pieces if piece.stream == stream)


ODD = r"""
import faulthandler, logging, subprocess, warnings
import rich.console, tqdm
sys.stdout.reconfigure(errors="surrogateescape")
logging.basicConfig(format="%(levelname)s %(message)s")
print("begin", 1, 2.5, sep="|", flush=True)
for step in tqdm.tqdm(range(1000), ascii=True, ncols=60, bar_format="{l_bar}{bar}{n_fmt}", mininterval=0):
    if step % 250 == 0:
        print("at", step)
with tqdm.tqdm(range(3), ascii=True, bar_format="outer {bar}{n_fmt}", ncols=40) as outer:
    for _ in outer:
        for _ in tqdm.tqdm(range(50), ascii=True, bar_format="inner {bar}{n_fmt}", ncols=40, leave=False, position=1):
            pass
logging.warning("from logging")
rich.console.Console(force_terminal=True, width=60).print("[bold red]rich[/]")
print("name \udcff", "x" * (1 << 20))
sys.stdout.writelines(["one\n", "two\n"])
sys.stdout.flush()
os.write(1, b"by descriptor\n")
subprocess.run(["echo", "by a child"], check=True)
sys.stdout.buffer.write(b"by bytes\n")
sys.stdout.flush()
faulthandler.dump_traceback(sys.stderr)
warnings.warn("careful")
print("no end", end="")
"""


def output_of(where: str, tmp_path: Path, way: str) -> tuple[bytes, bytes]:
    """Run the odd program with its streams in pipes, files or a pseudo terminal."""
    if where == "pipe":
        done = program(ODD, LOGCLIENT_CONSOLE=way)
        return done.stdout, done.stderr
    if where == "file":
        paths = [tmp_path / f"{name}{len(list(tmp_path.iterdir()))}" for name in ("out", "err")]
        with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
            subprocess.run(
                words_of(ODD),
                env=environment(LOGCLIENT_CONSOLE=way),
                stdout=out,
                stderr=err,
                timeout=PATIENCE_S,
                check=True,
            )
        return paths[0].read_bytes(), paths[1].read_bytes()
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        words_of(ODD), env=environment(LOGCLIENT_CONSOLE=way), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    return b"".join(read_all(ours, started)), b""


def read_all(fd: int, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    deadline = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < deadline:
            if select.select([fd], [], [], 0.2)[0]:
                data = os.read(fd, 65536)
                if not data:
                    break
                yield data
            elif process.poll() is not None:
                break
    except OSError:
        pass  # the other end of the terminal is closed
    finally:
        os.close(fd)
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("where", ["pipe", "file", "pty"])
def test_streams_are_the_same_byte_for_byte(where: str, run_dir: Path, tmp_path: Path) -> None:
    """With capture and without, whatever writes to them; but for addresses of threads."""
    found = [
        [re.sub(rb"(?m)0x[0-9a-f]+|, line \d+", b"", data) for data in output_of(where, tmp_path, way)]
        for way in ("tee", "off")
    ]
    assert found[0] == found[1] and len(found[0][0]) > 1 << 20


def test_output_is_read_as_somebody_would_have_seen_it(run_dir: Path) -> None:
    """Case R2-18: a bar with prints, two nested bars, no final newline, a 1 MB line, invalid UTF-8."""
    program(ODD)
    out, err = texts(run_dir, "stdout"), [text for text in texts(run_dir, "stderr") if text]
    assert out[:5] == ["begin|1|2.5", "at 0", "at 250", "at 500", "at 750"]
    assert out[5] == "rich" and out[6].startswith("name \\udcff xxx") and out[-1] == "no end"
    assert out[-3:-1] == ["one", "two"]
    long = next(line for line in lines(run_dir) if line.text.startswith("name"))
    assert len(long.text) + long.cut > 60_000 and len(long.text) <= 1 << 16
    (bar,) = [text for text in err if text.startswith("100%")]
    assert bar.endswith("1000") and not any(re.match(r"\s*\d\d%", text) for text in err)
    assert [text for text in err if text.startswith("outer")] == ["outer " + "#" * 33 + "3"]
    assert not any(text.startswith("inner") for text in err)
    assert "WARNING from logging" in err
    for hidden in ("by descriptor", "by a child", "by bytes"):
        assert not any(hidden in text for text in out + err), "C code, children and bytes are not captured"
    assert "\x1b[1;31mrich\x1b[0m" in raw(run_dir, "stdout") and "\r" in raw(run_dir, "stderr")
    shown = command("show", "printed", "--console", "--stdout", "--json").splitlines()
    assert [json.loads(line)["text"] for line in shown] == out
    assert command("show", "printed", "--console", "--stdout", "--raw").endswith("one\ntwo\nno end")


def command(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", *words],
        capture_output=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode()


def test_newest_state_of_a_bar_is_read_while_it_runs(run_dir: Path) -> None:
    """Case R2-18: one line, which is open, in the state that was drawn last; the prints before it in order."""
    source = """
    print("before")
    for state in iter(sys.stdin.readline, ""):
        print("\\rbar", state.strip(), end="", flush=True)
    """
    started = subprocess.Popen(
        words_of(source), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert started.stdin is not None
    for state in range(3):
        started.stdin.write(f"{state}\n")
        started.stdin.flush()
        wanted = ["before", f"bar {state}"]
        wait_until(partial(is_shown, run_dir, wanted), PATIENCE_S, "it is shown")
        assert lines(run_dir)[-1].is_open
    started.communicate(timeout=PATIENCE_S)
    nothing_left(PATIENCE_S)
    assert texts(run_dir) == ["before", "bar 2"] and not lines(run_dir)[-1].is_open


def is_shown(run_dir: Path, wanted: list[str]) -> bool:
    """Are these the lines so far? There may be no run yet."""
    try:
        return texts(run_dir) == wanted
    except logclient.NoRun:
        return False


def test_last_words_before_a_kill_are_there(run_dir: Path) -> None:
    """SIGKILL right behind a print, and in the middle of a line."""
    program(
        """
        print("before")
        print("last words", end="")
        os.kill(os.getpid(), 9)
        """,
        code=-9,
    )
    assert texts(run_dir) == ["before", "last words"]
    assert not any(line.is_open for line in lines(run_dir))


def test_traceback_that_ends_a_program_is_there(run_dir: Path) -> None:
    """Written by the interpreter to sys.stderr, before the run ends."""
    done = program("raise ValueError('the cause')", code=1)
    assert (
        texts(run_dir, "stderr")[-1] == "ValueError: the cause" and b"ValueError: the cause\n" in done.stderr
    )


def test_flood_costs_no_scalar(run_dir: Path, pace: Pace) -> None:
    """Prints as fast as they go, beside records: no record is lost, and each print is stored or counted."""
    prints = pace.count(1_000_000, least=60_000)
    program(
        """
        count = int(sys.argv[1])
        out = sys.stdout
        for number in range(count):
            print("flooding line", number)
            if number % 100 == 0:
                run.log(number, {"loss": float(number)})
        run.finish(60)
        """,
        prints,
    )
    run = logclient.read(run_dir)["printed"]
    assert run.about["counts"] == {
        "accepted": prints // 100,
        "stored": prints // 100,
        **dict.fromkeys(("forgotten", "damaged", "refused", "left_out", "waiting"), 0),
    }
    counts = run.console.counts()
    # each print is its text and " N"; the newline is a part of the next
    assert counts["accepted"] == 2 * prints + 1
    assert counts["stored"] + counts["forgotten"] == counts["accepted"] and not counts["damaged"]
    found = list(run.console.pieces())
    assert len(found) == counts["stored"]
    assert sum(piece.lost for piece in found) == counts["forgotten"]
    assert "".join(piece.text for piece in found).endswith(f"flooding line {prints - 1}\n")


def test_budget_on_disk_keeps_the_newest(run_dir: Path) -> None:
    """Where it is used up nothing is stored any more but what is in memory at the end; all is counted."""
    program(
        """
        for number in range(30):
            for line in range(200):
                print(f"{number * 200 + line:08}", os.urandom(8).hex())
            run.log(number, {"x": 1.0})
            run.flush(30)
        run.finish(60)
        """,
        LOGCLIENT_CONSOLE_DISK_BYTES="20000",
        LOGCLIENT_CONSOLE_BYTES="65536",
    )
    counts = logclient.read(run_dir)["printed"].console.counts()
    assert counts["accepted"] == 12_001 == counts["stored"] + counts["forgotten"]
    assert 0 < counts["stored"] < 6_000
    found = texts(run_dir)
    assert found[0].startswith("00000000") and found[-1].startswith("00005999")
    assert sum(path.stat().st_size for path in run_dir.rglob("*.seg")) < 150_000


def test_children_are_not_captured(run_dir: Path) -> None:
    """Forked, and started by spawn; the parent's capture goes on, and nothing is written twice."""
    done = program(
        """
        import multiprocessing
        print("parent")
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            print("forked")
            run.log(1, {"a": 1.0})
            print("forked again")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        child = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
        child.start(), child.join()
        print("parent again")
        """
    )
    assert sorted(done.stdout.decode().split("\n")) == sorted(
        ["", "parent", "forked", "forked again", "spawned", "parent again"]
    )
    assert texts(run_dir) == ["parent", "parent again"]
    assert len(view(folder.find(str(run_dir), live_dirs=[])[0]).of_side("console").processes) == 1


def test_stream_that_blocks_blocks_as_without_us(run_dir: Path, tmp_path: Path) -> None:
    """A full pipe stops the program in its own write, and lets it go on; nothing is lost."""
    source = """
    open(sys.argv[1], "w").close()
    for number in range(20000):
        print("line", number)
    """
    begun = tmp_path / "begun"
    started = subprocess.Popen(words_of(source, begun), env=environment(), stdout=subprocess.PIPE)
    wait_until(begun.exists, PATIENCE_S, "the program prints")
    wait_until(
        lambda: "pipe" in Path(f"/proc/{started.pid}/wchan").read_text() or is_writing(started.pid),
        PATIENCE_S,
        "",
    )
    out, _ = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 0 and out == b"".join(b"line %d\n" % number for number in range(20000))
    nothing_left(PATIENCE_S)
    counts = logclient.read(run_dir)["printed"].console.counts()
    assert counts["accepted"] == 40_001 == counts["stored"] + counts["forgotten"]


def is_writing(pid: int) -> bool:
    """Is the process in write(1, ...)?"""
    try:
        return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == ["1", "0x1"]
    except OSError:
        return False


def test_streams_that_were_replaced_go_on_after_finish(run_dir: Path) -> None:
    """By contextlib, by a handler of logging from before or after, by the user; afterwards they are the first ones."""
    done = program(
        """
        import contextlib, io, logging
        run.finish()
        assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
        first = logging.StreamHandler()
        run = logclient.init(id="printed", quiet=True)
        assert sys.stdout is not sys.__stdout__
        second = logging.StreamHandler()
        for handler in (first, second):
            logging.getLogger().addHandler(handler)
        logging.warning("captured once")
        inner = io.StringIO()
        with contextlib.redirect_stdout(inner):
            print("inside")
            run.finish()
            print("still inside")
        print("after")
        logging.warning("two handlers")
        assert inner.getvalue() == "inside\\nstill inside\\n"
        tee, sys.stdout = sys.stdout, io.StringIO()
        run = logclient.init(id="printed", quiet=True)
        mine, sys.stdout = sys.stdout, io.StringIO()
        run.finish()
        assert sys.stdout is not mine and isinstance(sys.stdout, io.StringIO)
        sys.stdout = tee
        print("at last")
        run = logclient.init(id="printed", quiet=True)
        print("captured again")
        run.finish()
        assert sys.stdout is sys.__stdout__
        """
    )
    assert done.stdout == b"after\nat last\ncaptured again\n"
    assert done.stderr == b"captured once\ncaptured once\ntwo handlers\ntwo handlers\n"
    assert texts(run_dir) == ["captured once", "captured again"]


def test_not_asked_for_nothing_is_touched(run_dir: Path) -> None:
    """No module of the capture is loaded, and streams are the program's own."""
    program(
        """
        assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
        assert not [name for name in sys.modules if name.endswith((".tee", ".capture", ".console_stream"))]
        print("not captured")
        """,
        LOGCLIENT_CONSOLE="off",
    )
    assert not lines(run_dir) and "nothing was captured" not in command(
        "show", "printed", "--console", "--json"
    )


@pytest.mark.parametrize("which", ["none", "notebook"])
def test_streams_that_are_not_ours_to_take_are_left_alone_and_said_once(which: str, run_dir: Path) -> None:
    """None, as in a program without a console; and those of a notebook's kernel."""
    program(
        """
        run.finish()
        class Stream:
            __module__ = "ipykernel.iostream"
            def write(self, text): pass
            def flush(self): pass
        sys.stdout = made = None if sys.argv[1] == "none" else Stream()
        run = logclient.init(id="printed", quiet=True)
        assert sys.stdout is made
        print("in err", file=sys.stderr)
        assert (sys.stderr is sys.__stderr__) == (sys.argv[1] == "notebook")
        run.finish()
        """,
        which,
    )
    run = logclient.read(run_dir)["printed"]
    (notice,) = [notice for notice in run.about["notices"] if "console='tee'" in notice]
    assert ("is None" if which == "none" else "notebook") in notice
    assert texts(run_dir) == (["in err"] if which == "none" else [])


STORM = r"""
class Tick(Exception):
    pass

raised, caught, begun = [], 0, time.monotonic()
def fail(number, frame):
    if frame is not None and str(frame.f_globals["__name__"]).startswith("logclient."):
        raised.append(1)
        raise Tick
signal.signal(signal.SIGALRM, fail)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
number = 0
while time.monotonic() - begun < float(sys.argv[1]):
    number += 1
    try:
        sys.stdout.write(f"{number}\n")
    except Tick as error:
        while error is not None:  # one that came while another was on its way carries that as its context
            caught += isinstance(error, Tick)
            error = error.__context__
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(raised) == caught > 10, (len(raised), caught)
run.finish(30)
sys.stdout.flush()
sys.stderr.write(str(number))
"""


def test_exceptions_of_a_handler_come_out_of_print(run_dir: Path, pace: Pace) -> None:
    """At 1 kHz: each arrives where it was raised; the stream is whole, and what was kept is in order."""
    done = program(STORM, pace.seconds(20))
    count = int(done.stderr)
    written = [int(line) for line in done.stdout.split()]
    assert written == sorted(set(written)) and count - len(written) < 2000
    assert len(written) > 1000
    kept = [
        int(line)
        for line in "".join(
            piece.text for piece in logclient.read(run_dir)["printed"].console.pieces()
        ).split()
    ]
    assert set(kept) <= set(range(count + 1)) and len(kept) > 1000


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_print_makes_no_system_call_of_ours(run_dir: Path, tmp_path: Path) -> None:
    """But reading the clock: into a stream in memory, with a ring that is full."""
    trace = tmp_path / "trace"
    source = """
    import ctypes, gc, io
    run.finish()
    sys.stdout = io.StringIO()
    run = logclient.init(id="printed", quiet=True, console_bytes=65536)
    def everything(number):
        print("text", number, 2.5)
        print("x" * 100_000, "\\udcff")
        sys.stdout.writelines(["a\\n", "b"])
        sys.stdout.truncate(0)
        sys.stdout.seek(0)
    for number in range(20):
        everything(number)
    gc.collect()
    gc.disable()
    marker = ctypes.CDLL(None).getpgid
    marker.argtypes = [ctypes.c_int]
    marker(111)
    for number in range(2000):
        everything(number)
    marker(222)
    os._exit(0)
    """
    words = ["strace", "-f", "-o", str(trace), "-E", "MALLOC_TOP_PAD_=67108864", *words_of(source)]
    subprocess.run(words, env=environment(), timeout=PATIENCE_S, check=True)
    found = trace.read_text().splitlines()
    begin = next(at for at, line in enumerate(found) if "getpgid(111" in line)
    end = next(at for at, line in enumerate(found) if "getpgid(222" in line)
    pid = found[begin].split()[0]
    calls = [
        match[1]
        for line in found[begin + 1 : end]
        if (match := re.match(rf"{pid}\s+(\w+)\(", line)) is not None
    ]
    assert set(calls) <= {"brk", "mmap", "munmap", "mremap", "clock_gettime"}, set(calls)


def test_output_reaches_a_collector(
    run_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live, page by page and by the same commands; it is in no count and no key of the run."""
    env = environment(**collector.env)
    source = """
    for number in range(500):
        print("line", number)
        run.log(number, {"loss": 1.0})
    sys.stdout.flush()
    sys.stdin.readline()
    print("the end", file=sys.stderr)
    run.finish(60)
    """
    started = subprocess.Popen(words_of(source), env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def page(**parameters: Any) -> Any:
        answer = collector.get("/api/v1/run/console", params={"run": "printed", **parameters})
        return answer.json() if answer.status_code == 200 else {"lines": []}

    def is_there() -> Any:
        found = page(limit=5)
        return found["lines"] and found["lines"][-1]["text"] == "line 499" and found

    live = wait_until(is_there, PATIENCE_S, "the last line at the collector")
    assert live["is_all"] and [line["text"] for line in live["lines"][:-1]] == [
        f"line {at}" for at in range(495, 499)
    ]
    started.communicate(b"\n", timeout=PATIENCE_S)
    nothing_left(PATIENCE_S)
    more = page(process=live["process"], after=live["next"])
    assert more["lines"][-1]["text"] == "the end" and not more["lines"][-1]["is_open"]
    before = page(process=live["process"], before=live["previous"], limit=3)
    assert [line["text"] for line in before["lines"]] == ["line 492", "line 493", "line 494"]
    (found,) = page(search="LINE 77", stream="stdout")["lines"]
    assert found["text"] == "line 77" and found["number"] == 78
    monkeypatch.setenv("LOGCLIENT_TOKEN", collector.token)
    run = logclient.read(collector.url)["printed"]
    assert [line.text for line in run.console] == texts(run_dir) and run.keys() == ["loss"]
    assert run.about["counts"]["stored"] == 500
