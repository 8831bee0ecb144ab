"""Rules over facts: each condition begins once and ends once, and none is judged that is not known."""

from __future__ import annotations

from dataclasses import replace

from logclient.shm.alert_rules import ALWAYS, checked
from logclient_backend.alerts.conditions import GONE_AFTER_S, QUIET_S, Conditions
from logclient_backend.alerts.event import BEGIN, END, ONCE, Finding
from logclient_backend.alerts.facts import Facts, RankState, UserAlert

LIVES = RankState(is_alive=True)
KILLED = RankState(is_alive=False, text="signal SIGKILL")
CLEAN = RankState(is_alive=False, is_clean=True, text="exit code 0")


def conditions(*more: object) -> Conditions:
    return Conditions(checked([*ALWAYS, *more]))


def phases(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.kind, each.phase) for each in found]


def test_what_is_not_known_is_not_judged() -> None:
    assert conditions("straggler").look(Facts(now=5.0)) == []


def test_stalled_begins_and_ends() -> None:
    """The verdict is the text; a verdict that changes is the same episode."""
    made = conditions()
    assert made.look(Facts(now=0.0, stalled="")) == []
    (begin,) = made.look(Facts(now=1.0, stalled="file system: rank 3 waits for /data", stalled_rank=3))
    assert (begin.kind, begin.phase, begin.rank, begin.text[:11]) == ("stalled", BEGIN, 3, "file system")
    assert made.look(Facts(now=2.0, stalled="another word")) == []
    assert made.look(Facts(now=3.0)) == []  # not known
    assert phases(made.look(Facts(now=4.0, stalled=""))) == [("stalled", END)]


def test_state_is_reported_when_it_changes() -> None:
    """The first state is none, and the next observer does not report a change again."""
    made = conditions()
    assert made.look(Facts(now=0.0, state="running")) == []
    (found,) = made.look(Facts(now=1.0, state="failed", cause="ValueError: x"))
    assert (found.phase, found.level) == (ONCE, "error")
    assert found.text == "the run is failed: ValueError: x (it was running)"
    following = conditions()
    following.restore(made.saved())
    assert following.look(Facts(now=0.0, state="failed")) == []
    assert [each.level for each in following.look(Facts(now=0.0, state="running"))] == ["info"]


def test_rank_that_is_gone_while_its_peers_live() -> None:
    """A rank that ends well is not *gone*, nor are ranks that all end; the next attempt ends the episode."""
    made = conditions()
    assert made.look(Facts(now=0.0, ranks={0: LIVES, 1: KILLED, 2: CLEAN})) == []
    found = made.look(Facts(now=GONE_AFTER_S, ranks={0: LIVES, 1: KILLED, 2: CLEAN}))
    assert [(each.rank, each.phase, each.text) for each in found] == [
        (1, BEGIN, "rank 1 has ended (signal SIGKILL), and 1 of its peers live")
    ]
    assert phases(made.look(Facts(now=9.0, ranks={0: LIVES, 1: LIVES}))) == [("gone", END)]
    assert made.look(Facts(now=10.0, ranks={0: LIVES, 1: KILLED})) == []
    assert made.look(Facts(now=12.0, ranks={0: KILLED, 1: KILLED})) == []
    assert made.look(Facts(now=99.0, ranks={0: KILLED, 1: KILLED})) == []


def test_disk_and_budget_have_hysteresis() -> None:
    """A value that trembles at the limit is one episode."""
    made = conditions({"when": "budget", "used": 0.8})
    base = Facts(now=0.0, disk_free=0.5, budgets={"shared memory": 0.5})
    assert made.look(base) == []
    both = made.look(replace(base, disk_free=0.04, budgets={"shared memory": 0.8}))
    assert phases(both) == [("disk", BEGIN), ("budget", BEGIN)] and "shared memory: 80 % is" in both[
        1
    ].text.replace("%", " %")
    assert made.look(replace(base, disk_free=0.06, budgets={"shared memory": 0.79})) == []
    assert phases(made.look(base)) == [("disk", END), ("budget", END)]


def test_large_disk_has_room_where_a_small_share_is_free() -> None:
    made = conditions()
    assert made.look(Facts(now=0.0, disk_free=0.04, disk_free_bytes=100 << 30)) == []
    assert phases(made.look(Facts(now=0.0, disk_free=0.03, disk_free_bytes=60 << 30))) == [("disk", BEGIN)]
    assert made.look(Facts(now=0.0, disk_free=0.04, disk_free_bytes=90 << 30)) == []
    assert phases(made.look(Facts(now=0.0, disk_free=0.04, disk_free_bytes=100 << 30))) == [("disk", END)]


def test_dropped_records_are_one_episode_while_more_are_dropped() -> None:
    made = conditions()
    assert made.look(Facts(now=0.0, dropped=0)) == []
    (begin,) = made.look(Facts(now=1.0, dropped=5))
    assert begin.value == 5.0 and "5 records were dropped" in begin.text
    assert made.look(Facts(now=50.0, dropped=9)) == []
    assert made.look(Facts(now=49.0 + QUIET_S, dropped=9)) == []
    (end,) = made.look(Facts(now=50.0 + QUIET_S, dropped=9))
    assert end.phase == END and "9 in all" in end.text
    following = conditions()
    following.restore(made.saved())
    assert following.look(Facts(now=0.0, dropped=9)) == []


def test_slow_rank_by_its_time_in_sections() -> None:
    """Seconds per step since the last look; a look at which a rank has not moved on is left out."""
    made, found = conditions("straggler"), []
    work = dict.fromkeys(range(4), (0, 0.0))
    for look in range(200):
        for rank, (step, took) in work.items():
            slow = 1.2 if rank == 2 else 1.0
            noise = 0.001 * ((look * 31 + rank * 17) % 11 - 5)
            if not (rank == 1 and look % 3 == 0):
                work[rank] = step + 2, took + 2 * 0.1 * (slow + noise)
        found += made.look(Facts(now=float(look), work=dict(work)))
    assert [(each.kind, each.rank, each.phase) for each in found] == [("straggler", 2, BEGIN)]


def test_alerts_of_a_program() -> None:
    """Level and rank are its own; what was too much is told."""
    alert = UserAlert("p1", 7, "Loss", "is high", "error", 3, missing=2)
    (found,) = conditions().look(Facts(now=0.0, alerts=[alert]))
    assert (found.kind, found.phase, found.level, found.rank) == ("alert", ONCE, "error", 3)
    assert found.text == "Loss: is high (2 alerts before it were too many to be kept)"
