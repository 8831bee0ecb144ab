"""What a notebook shows of a run: content, escaping, last values; in use by threads, forked, finished, damaged."""

from __future__ import annotations

import os
import re
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import logclient
from logclient.notebook import card
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

    def values(self) -> dict[str, tuple[str, str]]:
        """key -> (step, value), of the table of last values."""
        at = self.lines.index("last value") + 1 if "last value" in self.lines else len(self.lines)
        cells = [line for line in self.lines[at:] if not line.startswith("and ")]
        return {cells[i]: (cells[i + 1], cells[i + 2]) for i in range(0, len(cells), 3)}


def shown(run: Any) -> Shown:
    return Shown(run._repr_html_())


def test_view_says_what_it_is_where_it_lies_and_what_was_logged(run_dir: Path) -> None:
    """Name, project, id, folder with link, command, counts, and the newest value of each key."""
    with opened("digits", name="mlp") as (run, _):
        for step in range(1000):
            run.log(step, {"loss": step / 4, "lr": 0.5})
        run.log(7, {"text": "a < b", "flag": True, "count": 12345, "big": 1 << 70, "loss": float("nan")})
        run.log("no step", {"loss": 1.0})
        view = shown(run)
        assert {"mlp", "digits", run.id} <= set(view.lines)
        assert "running" in view.text
        (link,) = view.links
        assert unquote(link) == f"file://{run_dir}/{run.id}"
        assert f"logclient show {run.id} --dir {run_dir}" in view.text
        assert "1,001 accepted, 0 durable, 1 dropped (refused 1)" in view.text
        assert view.values() == {
            "loss": ("7", "nan"),
            "lr": ("999", "0.5"),
            "text": ("7", "a < b"),
            "flag": ("7", "True"),
            "count": ("7", "12,345"),
            "big": ("7", "an int of 71 bits"),
        }
        assert repr(run) == f"<logclient.Run 'mlp' ({run.id}): running, accepted 1,001, durable 0>"


def test_everything_shown_is_data(run_dir: Path) -> None:
    """Tags, quotes, control characters and marks that turn text in names, keys, values and folders stay text."""
    nasty = NASTY.replace("\ud800", "").replace("\0", "")
    with opened(nasty, name=nasty, dir=str(run_dir / "x'<b>\" --help")) as (run, _):
        run.log(1, {NASTY.replace("\0", "").replace("\ud800", ""): "</td><img src=x onerror=alert(1)>"})
        source = run._repr_html_()
        view = Shown(source)
        assert set(view.tags) <= {"div", "b", "span", "table", "tr", "td", "th", "a", "code"}
        assert source.isprintable() and source.encode()
        assert len(view.links) == 1 and re.fullmatch(r"file://[\w/.%~-]+", view.links[0])
        assert "<script>alert('x')</script>&\"\\u202e\\n" in view.text
        run._session.about["name"] = run._session.shm_dir.facts["project"] = NASTY  # what no file would hold
        assert Shown(run._repr_html_()).text.count("\\ud800\\x00") == 2


def test_many_keys_are_counted_and_large_records_read(run_dir: Path) -> None:
    """At most 20 keys, the newest; records that lie in blocks or describe themselves are read like others."""
    with opened() as (run, _):
        run.log(1, {f"old{index}": 1.0 for index in range(30)})
        run.log(2, {f"new{index:02}": float(index) for index in range(15)})
        view = shown(run)
        assert len(view.values()) == card.MAX_KEYS and "and 25 more keys in memory" in view.text
        assert view.values()["new14"] == ("2", "14")
        run.log(3, {f"wide{index}": "x" * 4000 for index in range(20)})  # a block
        assert all(
            value == ("3", "x" * 59 + "\N{HORIZONTAL ELLIPSIS}") for value in shown(run).values().values()
        )
        for index in range(5000):  # more than there are ids
            run.log(index, {f"key{index}": 1.0})
        assert set(shown(run).values()) == {f"key{index}" for index in range(4980, 5000)}


def test_values_are_the_newest_through_every_lap(run_dir: Path, pace: Pace) -> None:
    """Records of many sizes, laps with padding: what is shown is always the last record of each key."""
    with opened(lanes_bytes=256 << 10) as (run, file):
        last: dict[str, int] = {}
        for step in range(pace.count(40_000, least=3000)):
            width = 1 + step * 7919 % 300
            run.log(
                step, {f"w{width}": float(step), **{f"k{index}": float(step) for index in range(width % 40)}}
            )
            last[f"w{width}"] = step
            if step % 50 == 0:
                file.read()  # an agent that keeps up: nothing is forgotten
            if step % 97 == 0:
                found = card.last_values(run._session.lanes)
                assert next(iter(found.values()))[1] == step
                for key, (_, at, value) in found.items():
                    assert value == at
                    assert key not in last or last[key] == at


def test_run_in_use_by_threads_can_be_looked_at(run_dir: Path, pace: Pace) -> None:
    """Four threads log while others look: every value shown was logged, no record is refused for it."""
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
                    for key, (_, step, value) in card.last_values(run._session.lanes).items():
                        assert value == (str(step) if key == "text" else step + 0.5 * (key[0] == "b"))
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


def test_finished_run_shows_its_end_and_last_values(run_dir: Path) -> None:
    """After finish: state, counts, values; what was not on disk by then is said."""
    with opened() as (run, file):
        run.log(3, {"loss": 0.25})
        file.read()
        file.make_durable()
        file.words[layout.DOCUMENTS_DURABLE] = 1 << 40  # those to come, too
        assert shown(run).values() == {"loss": ("3", "0.25")}
        assert run.finish()
        view = shown(run)
        assert "finished" in view.text and "not all of it" not in view.text
        assert view.values() == {"loss": ("3", "0.25")}
        run.log(4, {"loss": 0.5})
        assert "1 accepted, 1 durable, 1 dropped (refused 1)" in shown(run).text
    with pytest.raises(ZeroDivisionError), opened() as (run, _), run:
        run.log(1, {"loss": 1.0})
        1 / 0  # noqa: B018
    assert "failed, not all of it on disk" in shown(run).text


def test_null_run_says_why_nothing_is_logged() -> None:
    """Disabled, or no run: no folder, no values, the reason."""
    run = logclient.init("p", mode="disabled")
    assert "disabled: nothing is logged" in shown(run).text
    closed = logclient.NullRun("", {}, (), closed="no shared memory <here>")
    assert "nothing is logged: no shared memory <here>" in shown(closed).text
    assert repr(closed) == "<logclient.NullRun: no shared memory <here>>"
    assert repr(run) == "<logclient.NullRun: disabled, nothing is logged>"


def test_damaged_lanes_are_shown_without_what_cannot_be_read(run_dir: Path) -> None:
    """Noise in the ring, in the key area or in both: a view, no exception, no wrong value."""
    with opened() as (run, file):
        for step in range(200):
            run.log(step, {"loss": float(step), f"k{step}": float(step)})
        at = file.words[layout.LANE_HEADERS + layout.LANE_OFFSET]
        middle = at + 100 * 56
        file.mem[middle : middle + 64] = os.urandom(64)
        found = card.last_values(run._session.lanes)
        assert found["loss"][1:] == (199, 199.0) and all(value == step for _, step, value in found.values())
        keys = run._session.lanes.words[layout.FILE_KEYS]
        file.mem[keys : keys + 4096] = os.urandom(4096)
        assert "accepted" in run._repr_html_()
        file.mem[at : at + 64 * 1024] = os.urandom(64 * 1024)
        assert "no values" in run._repr_html_()
        file.words[layout.LANE_HEADERS + layout.TAIL] = 1 << 63
        assert run.id in run._repr_html_()


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
    assert Shown(own).values() == {"child": ("2", "2")} and "has joined it" in own
    assert "left by this process" in left
    assert Shown(parent).values() == {"parent": ("1", "1")} and "1 dropped" in parent


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
    assert "logclient.notebook.card" in sys.modules
