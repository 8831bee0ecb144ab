"""`Run.section`: what it leaves in the lane file, how sections nest, and what they never do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.shm import layout
from logclient_backend.runs.live import LiveLanes
from logclient_backend.runs.sections import Sections
from tests.lanes import LaneFile, Script, opened


def sections_of(file: LaneFile) -> Sections | None:
    """As `logclient why` reads them, from the file."""
    return LiveLanes(str(file.path.parent), file.path.name).sections(time.monotonic_ns())


def times_of(file: LaneFile) -> dict[str, float]:
    found = sections_of(file)
    return {} if found is None else {each.name: each.seconds for each in found.times}


def test_section_is_shown_with_its_time(run_dir: Path) -> None:
    """The current one and since when; what is over adds up."""
    with opened() as (run, file):
        assert sections_of(file) is None
        for _ in range(2):
            with run.section("data"):
                found = sections_of(file)
                assert found is not None and found.current == "data"
                time.sleep(0.02)
        found = sections_of(file)
        assert found is not None and found.current == ""
        assert 0.04 <= times_of(file)["data"] < 30


def test_time_of_an_inner_section_is_not_the_outer_ones(run_dir: Path) -> None:
    """The outer one goes on after it, also where both are one."""
    with opened() as (run, file):
        outer, inner = run.section("outer"), run.section("inner")
        with outer:
            with inner:
                time.sleep(0.05)
            found = sections_of(file)
            assert found is not None and found.current == "outer"
            before = times_of(file)["inner"]
            with outer:
                time.sleep(0.02)
            found = sections_of(file)
            assert found is not None and found.current == "outer"
            assert times_of(file)["inner"] == before
        times = times_of(file)
        assert times["inner"] >= 0.05 and times["outer"] >= 0.02
        found = sections_of(file)
        assert found is not None and found.current == ""
        assert run.section("outer") is outer


def test_exceptions_pass_and_the_section_is_left(run_dir: Path) -> None:
    with opened() as (run, file):
        with pytest.raises(KeyError), run.section("data"):
            raise KeyError
        found = sections_of(file)
        assert found is not None and found.current == ""


def test_generator_that_was_given_up_leaves_no_section_open(run_dir: Path) -> None:
    """The outer one that is left ends it; its own late exit then changes nothing."""
    with opened() as (run, file):

        def batches() -> Iterator[int]:
            with run.section("data"):
                yield 1

        with run.section("epoch"):
            held = batches()
            next(held)
        found = sections_of(file)
        assert found is not None and found.current == ""
        with run.section("step"):
            del held
            found = sections_of(file)
            assert found is not None and found.current == "step"
        found = sections_of(file)
        assert found is not None and found.current == ""


def test_seventeenth_name_counts_into_other(run_dir: Path) -> None:
    """And so do names that are none; each cause is said once."""
    with opened() as (run, file):
        names = [f"section {number}" for number in range(layout.MAX_SECTIONS)]
        for name in names:
            with run.section(name):
                pass
        assert list(times_of(file)) == names
        wrong: list[Any] = ["one more", "and another", "", "\0", 7, None, [1], object()]
        for each in wrong * 2:
            with run.section(each):
                found = sections_of(file)
                assert found is not None and found.current == "other"
        assert list(times_of(file)) == [*names, "other"]
        assert sum("counts into the section 'other'" in line for line in run.status()["notices"]) == 3


@pytest.mark.parametrize(("name", "shown"), [("x" * 100, "x" * 24), ("ü☃" * 20, "ü☃" * 4 + "ü")])
def test_long_name_is_cut_between_characters(name: str, shown: str, run_dir: Path) -> None:
    with opened() as (run, file):
        with run.section(name), run.section(name):
            pass
        assert list(times_of(file)) == [shown]
        assert run.section(name) is run.section(shown)


def test_another_thread_changes_nothing(run_dir: Path) -> None:
    """Neither its own sections nor those that it finds open."""
    with opened() as (run, file):
        data = run.section("data")

        def other() -> None:
            with data, run.section("prefetch"):
                time.sleep(0.01)

        with data:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)
            found = sections_of(file)
            assert found is not None and found.current == "data"
        assert times_of(file)["prefetch"] == 0


def test_finished_disabled_ranked_and_no_run(run_dir: Path) -> None:
    """Nothing is raised; a run of another rank has the sections of its process."""
    with opened() as (run, file):
        kept = run.section("kept")
        assert run.as_rank(3).section("kept") is kept
        with logclient.section("current"):
            pass
        with kept:
            run.finish(0)
        with kept, run.section("late"):
            pass
        assert "late" not in times_of(file)
    null = logclient.init("p", mode="disabled")
    with null.section("nothing"), null.as_rank(1).section("nothing"):
        pass


def test_forked_child_has_words_of_its_own(run_dir: Path, tmp_path: Path) -> None:
    """Also where it leaves a section that its parent entered: the parent's words stay as they are."""
    source = """
    run = logclient.init("sections")
    from logclient_backend.runs.live import look
    def shown():
        now = time.monotonic_ns()
        found = {each.pid: each.sections(now) for each in look(run._session.shm_dir.path).processes}
        return {pid: None if each is None else each.current for pid, each in found.items()}
    with run.section("parent"):
        pid = os.fork()
        if pid == 0:
            pass
        else:
            while not os.path.exists("inside"): time.sleep(0.01)
            found = shown()
            open("looked", "w").close()
            os.waitpid(pid, 0)
            print(json.dumps([found[os.getpid()], found[pid], shown()[os.getpid()]]))
    if pid == 0:
        with run.section("parent"), run.section("child"):
            open("inside", "w").close()
            while not os.path.exists("looked"): time.sleep(0.01)
        os._exit(0)
    """
    assert Script(tmp_path, source).result() == ["parent", "child", "parent"]


def test_handler_that_raises_never_unbalances_sections(run_dir: Path, tmp_path: Path) -> None:
    """A signal each millisecond whose handler raises: every exception arrives, and time is counted once."""
    source = """
    run = logclient.init("sections")
    class Alarm(Exception): pass
    rung = 0
    def ring(number, frame):
        global rung
        if frame.f_globals["__name__"] == "logclient.session.sections":
            rung += 1
            raise Alarm
    signal.signal(signal.SIGALRM, ring)
    from logclient_backend.runs.live import look
    begun, data = time.monotonic(), run.section("data")
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    arrived, deadline = 0, time.monotonic() + 40
    while rung < 300 and time.monotonic() < deadline:
        try:
            with data:
                with run.section("decode"):
                    pass
        except Alarm:
            arrived += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    with run.section("step"):
        inside = look(run._session.shm_dir.path).processes[0].sections(time.monotonic_ns())
    after = look(run._session.shm_dir.path).processes[0].sections(time.monotonic_ns())
    total = sum(each.seconds for each in after.times)
    print(json.dumps([rung >= 300, 0 < rung <= 2 * arrived, inside.current, total <= time.monotonic() - begun]))
    """
    assert Script(tmp_path, source).result() == [True, True, "step", True]
