"""The card that a notebook shows of a run: content, escaping; in use by threads, forked, finished."""

from __future__ import annotations

import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import logclient
from logclient.shm import layout
from tests.conftest import Pace
from tests.lanes import Script, opened

NASTY = "</td><script>alert('x')</script>&\"\u202e\ud800\0\n"


class Shown(HTMLParser):
    """Tags, links and text of a view; fails where a tag is not closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.lines: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        assert {name for name, _ in attributes} <= {"style", "href"}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.lines.append(data)

    @property
    def text(self) -> str:
        return "|".join(self.lines)


def shown(run: Any) -> Shown:
    return Shown(run._repr_html_())


def test_view_says_what_it_is_where_it_lies_and_what_was_logged(run_dir: Path) -> None:
    """Name, project, id, folder with link, command, and counts."""
    with opened("digits", name="mlp") as (run, _):
        for step in range(1001):
            run.log(step, {"loss": step / 4, "lr": 0.5})
        run.log("no step", {"loss": 1.0})
        view = shown(run)
        assert {"mlp", "digits", run.id} <= set(view.lines)
        assert "running" in view.text
        (link,) = view.links
        assert unquote(link) == f"file://{run_dir}/{run.id}"
        assert f"logclient show {run.id} --dir {run_dir}" in view.text
        assert "1,001 accepted, 0 durable, 1 dropped (refused 1)" in view.text
        assert repr(run) == f"<logclient.Run 'mlp' ({run.id}): running, accepted 1,001, durable 0>"


def test_everything_shown_is_data(run_dir: Path) -> None:
    """Tags, quotes, control characters and marks that turn text in names and folders stay text."""
    nasty = NASTY.replace("\ud800", "").replace("\0", "")
    with opened(nasty, name=nasty, dir=str(run_dir / "x'<b>\" --help")) as (run, _):
        source = run._repr_html_()
        view = Shown(source)
        assert set(view.tags) <= {"div", "b", "span", "table", "tr", "td", "th", "a", "code"}
        assert source.isprintable() and source.encode()
        assert len(view.links) == 1 and re.fullmatch(r"file://[\w/.%~-]+", view.links[0])
        assert "<script>alert('x')</script>&\"\\u202e\\n" in view.text
        run._session.about["name"] = run._session.shm_dir.facts["project"] = NASTY  # what no file would hold
        assert Shown(run._repr_html_()).text.count("\\ud800\\x00") == 2


def test_run_in_use_by_threads_can_be_looked_at(run_dir: Path, pace: Pace) -> None:
    """Four threads log while others look: no record is refused for it."""
    with opened(lanes_bytes=256 << 10, lanes=8) as (run, _):
        stop, failures = threading.Event(), []

        def log(number: int) -> None:
            step = 0
            while not stop.is_set():
                run.log(step, {f"a{number}": float(step), f"b{number}": step + 0.5, "text": str(step)})
                step += 1

        def look() -> None:
            for _ in range(pace.count(600, least=30)):
                try:
                    assert "accepted" in run._repr_html_()
                except Exception as error:  # noqa: BLE001 - told by the main thread
                    failures.append(error)

        threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
        lookers = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads + lookers:
            thread.start()
        for thread in lookers:
            thread.join(100)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert not failures
        assert run.status()["refused"] == 0


def test_finished_run_shows_its_end(run_dir: Path) -> None:
    """After finish: state, counts; what was not on disk by then is said."""
    with opened() as (run, file):
        run.log(3, {"loss": 0.25})
        file.read()
        file.make_durable()
        file.words[layout.DOCUMENTS_DURABLE] = 1 << 40  # those to come, too
        assert run.finish()
        view = shown(run)
        assert "finished" in view.text and "not all of it" not in view.text
        run.log(4, {"loss": 0.5})
        assert "1 accepted, 1 durable, 1 dropped (refused 1)" in shown(run).text
    with pytest.raises(ZeroDivisionError), opened() as (run, _), run:
        run.log(1, {"loss": 1.0})
        1 / 0  # noqa: B018
    assert "failed, not all of it on disk" in shown(run).text


def test_null_run_says_why_nothing_is_logged() -> None:
    """Disabled, or no run: no folder, the reason."""
    run = logclient.init("p", mode="disabled")
    assert "disabled: nothing is logged" in shown(run).text
    closed = logclient.NullRun("", {}, (), closed="no shared memory <here>")
    assert "nothing is logged: no shared memory <here>" in shown(closed).text
    assert repr(closed) == "<logclient.NullRun: no shared memory <here>>"
    assert repr(run) == "<logclient.NullRun: disabled, nothing is logged>"


FORKED = """
run = logclient.init("forks", name="parent")
run.log(1, {"parent": 1.0})
run.log("wrong", {"parent": 1.0})
run._repr_html_()
out, into = os.pipe()
pid = os.fork()
if pid == 0:
    seen = [run._repr_html_(), repr(run)]
    run.log(2, {"child": 2.0})
    seen.append(run._repr_html_())
    run.finish()
    seen.append(run._repr_html_())
    os.write(into, json.dumps(seen).encode())
    os._exit(0)
os.close(into)
with os.fdopen(out, "rb") as pipe:
    seen = json.loads(pipe.read())
os.waitpid(pid, 0)
print(json.dumps([*seen, run._repr_html_()]))
"""


def test_forked_child_shows_its_own(run_dir: Path, tmp_path: Path) -> None:
    """Before its first record nothing of its parent's counts as its own; afterwards its lanes; its end is no end."""
    before, line, own, left, parent = Script(tmp_path, FORKED).result()
    assert "has logged nothing yet" in before and "0 accepted, 0 durable, 0 dropped" in before
    assert "accepted 0" in line
    assert "1 accepted" in own and "has joined it" in own
    assert "left by this process" in left
    assert "1 accepted" in parent and "1 dropped" in parent


def test_program_that_shows_nothing_loads_nothing_for_it(run_dir: Path, tmp_path: Path) -> None:
    """The module and what it needs is loaded by the first view; `print(run)` needs none of it."""
    source = """
    run = logclient.init("p")
    str(run), f"{run}"
    before = "logclient.notebook.card" in sys.modules
    run._repr_html_()
    print(json.dumps([before, "logclient.notebook.card" in sys.modules]))
    """
    assert Script(tmp_path, source).result() == [False, True]
