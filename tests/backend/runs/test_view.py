"""One run over all its nodes and attempts, from documents."""

from __future__ import annotations

import time
from pathlib import Path

from logclient_backend.runs.folder import find
from logclient_backend.runs.view import RunView, view

from .build import NOW_NS, SECOND, NodeMaker, process_id, rec, simple_run

HOUR = 3600 * SECOND
DAY = 24 * HOUR


def seen(folder: Path) -> RunView:
    (run,) = find(str(folder), live_dirs=[], home="/nonexistent")
    return view(run, now_ns=NOW_NS + 100 * DAY)


def test_documents_are_merged_in_time_order_key_by_key(tmp_path: Path) -> None:
    """The newest value of each key counts, whoever wrote it; what a later one does not have stays."""
    first = NodeMaker(tmp_path, "run", "aa")
    first.process(
        1,
        documents={
            "config": (NOW_NS + 5, {"lr": 1, "a": {"b": 1}, "a.b": 2}),
            "summary": (NOW_NS, {"best": 1}),
        },
    )
    first.save()
    second = NodeMaker(tmp_path, "run", "bb")
    second.process(
        2, role="member", documents={"config": (NOW_NS + 9, {"lr": 3}), "summary": (NOW_NS - 1, {"best": 7})}
    )
    second.process(3, role="member", documents={"config": (NOW_NS + 7, {"lr": 2, "x": None})})
    second.save()
    run = seen(tmp_path)
    assert run.config == {"lr": 3, "a": {"b": 1}, "a.b": 2, "x": None}
    assert run.summary == {"best": 1}


def test_trainings_of_a_resumed_run_are_listed_behind_those_before(tmp_path: Path) -> None:
    """What integrations note under `fits`; a list of the user's own under that name is one value."""
    fits = [{"first_step": step, "epochs": 1} for step in (1, 1, 9)]
    for folder, own in (("ours", False), ("users", True)):
        for number, listed in enumerate((fits[:1], fits[1:]), 1):
            node = NodeMaker(tmp_path / folder, "run", f"{number}a")
            value = [fit["epochs"] for fit in listed] if own else listed
            node.process(number, documents={"config": (NOW_NS + number, {"fits": value, "lr": number})})
            node.save()
    assert seen(tmp_path / "ours").config == {"fits": fits, "lr": 2}
    assert seen(tmp_path / "users").config == {"fits": [1, 1], "lr": 2}


def test_later_attempt_keeps_name_tags_and_notes(tmp_path: Path) -> None:
    """A resume that names only the id takes nothing away."""
    first = NodeMaker(tmp_path, "run", "aa")
    first.process(
        1, documents={"about": (NOW_NS, {"name": "mlp", "tags": ["x"], "notes": "why", "group": "g"})}
    )
    first.save()
    second = NodeMaker(tmp_path, "run", "bb")
    second.process(
        2, documents={"about": (NOW_NS + 5, {"name": "run", "tags": [], "notes": "", "group": ""})}
    )
    second.save()
    run = seen(tmp_path)
    assert (run.name, run.tags, run.notes, run.group) == ("mlp", ["x"], "why", "g")


def test_alerts_and_notices_of_all_processes(tmp_path: Path) -> None:
    """In the order of their times; the same notice once."""
    maker = NodeMaker(tmp_path, "run")
    for number, when in ((1, 30), (2, 10)):
        alert = {"time": NOW_NS + when, "title": f"t{number}", "text": "", "level": "warn"}
        maker.process(
            number, documents={"notices": {"alerts": [alert, "rubbish"], "notices": ["same", number]}}
        )
    run = seen(maker.save().path.parent.parent)
    assert [alert["title"] for alert in run.alerts if alert["title"]] == ["t2", "t1"]
    assert run.notices == ["same"]


def test_gaps_between_attempts_are_not_activity(tmp_path: Path) -> None:
    """R2-24: an hour, resumed two days later for ten minutes, and a week after for another ten."""
    starts = [(0, HOUR), (2 * DAY, 10 * 60 * SECOND), (9 * DAY, 10 * 60 * SECOND)]
    for number, (start, long) in enumerate(starts, 1):
        maker = NodeMaker(tmp_path, "run", f"node-{number}")
        maker.created_ns = NOW_NS + start
        end = {"time": NOW_NS + start + long, "alive": False, "signal": 9}
        maker.process(number, end=end)
        maker.process(10 + number, role="member", created_ns=NOW_NS + start + SECOND)
        maker.save()
    run = seen(tmp_path)
    assert [(each.start_ns - NOW_NS, each.end_ns - each.start_ns) for each in run.attempts] == starts
    assert [each.processes for each in run.attempts] == [
        [process_id(n), process_id(10 + n)] for n in (1, 2, 3)
    ]
    assert run.created_ns == NOW_NS
    assert run.last_ns == NOW_NS + 9 * DAY + 600 * SECOND
    assert run.active_ns == HOUR + 1200 * SECOND
    assert run.state.name == "killed"


def test_owners_at_the_same_time_are_one_attempt(tmp_path: Path) -> None:
    """C8-4: two processes that log to one id side by side."""
    maker = NodeMaker(tmp_path, "run")
    for number in (1, 2):
        end = {"time": NOW_NS + HOUR + number, "alive": False, "exit_code": number - 1}
        maker.process(number, created_ns=NOW_NS + number * SECOND, end=end)
    maker.save()
    run = seen(tmp_path)
    assert len(run.attempts) == 1
    assert run.state.name == "failed"


def test_child_that_outlives_its_parent_is_part_of_the_attempt(tmp_path: Path) -> None:
    """R2-34: a child's end never ends the run, nor does its life keep it running."""
    maker = NodeMaker(tmp_path, "run")
    finished = {"state": (NOW_NS + HOUR, {"state": "finished", "by": "finish"})}
    maker.process(1, documents=finished, end={"time": NOW_NS + HOUR, "alive": False, "exit_code": 0})
    maker.process(
        2,
        role="member",
        created_ns=NOW_NS + 2 * HOUR,
        end={"time": NOW_NS + DAY, "alive": False, "exit_code": 1},
    )
    maker.save()
    run = seen(tmp_path)
    assert len(run.attempts) == 1
    assert (run.state.name, run.states[process_id(2)].name) == ("finished", "failed")


def test_process_whose_init_raised_is_not_part_of_the_run(tmp_path: Path) -> None:
    """resume="never" on a run that is there changes nothing of it."""
    simple_run(tmp_path, "run")
    late = NodeMaker(tmp_path, "run", "bb")
    late.process(7, documents={"state": {"state": "abandoned", "by": "init"}, "config": {"lr": 9}})
    late.save()
    run = seen(tmp_path)
    assert (run.state.name, len(run.attempts), run.config) == ("finished", 1, {})


def test_resumed_run_is_as_its_newest_attempt(tmp_path: Path) -> None:
    """Killed, then resumed and finished: finished. States are corrected if data comes again."""
    maker = NodeMaker(tmp_path, "run", "aa")
    maker.process(1, end={"time": NOW_NS + HOUR, "alive": False, "signal": 9})
    maker.save()
    assert seen(tmp_path).state.name == "killed"
    again = NodeMaker(tmp_path, "run", "bb")
    again.process(
        2,
        created_ns=NOW_NS + DAY,
        documents={"state": (NOW_NS + DAY + 5, {"state": "finished", "by": "finish"})},
    )
    again.save()
    assert seen(tmp_path).state.name == "finished"


def test_end_that_was_seen_late_does_not_join_attempts(tmp_path: Path) -> None:
    """Trainer and agent were killed; the next attempt's agent finds out. Its last record tells until when it lived."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1, end={"time": NOW_NS + DAY + 9, "alive": False})
    maker.segment({(1, 1, 0): [rec(1), rec(60)]})
    finished = {"state": (NOW_NS + DAY + HOUR, {"state": "finished", "by": "finish"})}
    maker.process(2, created_ns=NOW_NS + DAY, documents=finished)
    maker.save()
    run = seen(tmp_path)
    assert [(each.start_ns - NOW_NS, each.end_ns - NOW_NS) for each in run.attempts] == [
        (0, 60 * SECOND),
        (DAY, DAY + HOUR),
    ]
    assert (run.state.name, run.states[process_id(1)].name) == ("finished", "lost")


def test_counts_are_told_by_the_agents(tmp_path: Path) -> None:
    """accepted = stored + forgotten + damaged, over all nodes; refused and left out apart."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1, refused=4, left_out=5)
    maker.told(1, 1, 100, 70, 10)
    maker.told(2, 1, 5, 5, lane=1)
    maker.save()
    assert seen(tmp_path).counts() == {
        "accepted": 105,
        "stored": 75,
        "forgotten": 20,
        "damaged": 10,
        "refused": 4,
        "left_out": 5,
        "waiting": 0,
    }


def test_thousand_runs_are_seen_quickly_enough_to_list(tmp_path: Path) -> None:
    """R2-14: a list reads documents alone, whatever the segments hold. (No time is asserted beyond the absurd.)"""
    for number in range(300):
        NodeMaker(tmp_path, f"run-{number}").save()
    started = time.monotonic()
    assert len([view(run) for run in find(str(tmp_path), live_dirs=[], home="/nonexistent")]) == 300
    assert time.monotonic() - started < 30
