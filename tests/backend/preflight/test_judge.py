"""Findings from results as ranks give them: who is named, and what is only the consequence of another finding."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from logclient_backend.preflight import report
from logclient_backend.preflight.coordinator import SILENT_S, Coordinator, Job, Member
from logclient_backend.preflight.lines import Line
from logclient_backend.preflight.place import Place
from logclient_backend.preflight.rank import Plan
from logclient_backend.preflight.results import Results

PLACE = Place(0, 8, "torchrun", "node0", (), "token", None)
PLAN = Plan((), "auto", 8.0, 25.0)
TORCH = {"version": "2.13", "import_s": 3.0, "has_distributed": True, "has_nccl": True}


@pytest.fixture
def made() -> Iterator[Coordinator]:
    """Eight ranks on two hosts, all of which have joined."""
    with socket.socket() as server:
        coordinator = Coordinator(server, PLACE, PLAN)
        for rank in range(8):
            ours, theirs = socket.socketpair()
            theirs.close()
            line = Line(ours)
            member = Member(rank, line, f"node{rank // 4}", 100 + rank, {"NCCL_DEBUG": "INFO"}, [])
            member.torch, member.imported_at = dict(TORCH), time.monotonic()
            coordinator.members[rank] = member
        yield coordinator
        for each in coordinator.members.values():
            each.line.close()


def job(*messages: dict[str, Any], ended: str = "over", **given: Any) -> Job:
    found = Job(1, "check", given, ended=ended)
    for message in messages:
        found.take(message)
    return found


def sound() -> Results:
    """All checks as they go without a fault."""
    found = Results(PLACE, PLAN)
    for rank in range(8):
        tries = [
            {"rank": other, "error": "", "connect_s": 0.001, "echo_s": 0.001}
            for other in range(8)
            if other != rank
        ]
        found.pairs[rank] = job({"listening": ["eth0", f"10.0.0.{rank}", 4000 + rank]}, {"pairs": tries})
        found.devices[rank] = job({"devices": ["H200"], "ids": ["cuda:0"], "uuids": [f"u{rank}"]})
        finished = {"stage": "finished", "seconds": {}, "all_reduce_s": 0.001}
        found.collectives.setdefault("gloo", {})[rank] = job(finished)
        facts = {"rate": 7e14, "free_bytes": 140 << 30, "clock_mhz": 1900.0}
        found.measured.setdefault(0, {})[rank] = facts
        seconds = {"write": 0.01, "fsync": 0.02}
        found.folders.append((rank, job({"result": {"seconds": seconds}}, ended="done", path="/ckpt")))
    return found


def findings(made: Coordinator, found: Results) -> list[tuple[str, tuple[int, ...], str]]:
    return [(each["code"], each["ranks"], each["where"]) for each in report.report(made, found)["findings"]]


def fail(found: Results, rank: int, other: int, why: str = "connecting took more than 5 s") -> None:
    sent = found.pairs[rank].newest("pairs")
    assert sent is not None
    next(each for each in sent["pairs"] if each["rank"] == other)["error"] = why


def test_sound_job_has_no_finding(made: Coordinator) -> None:
    whole = report.report(made, sound())
    assert whole["ok"] and len(whole["members"]) == 8
    assert whole["settings"] == [
        {"name": "NCCL_DEBUG", "values": [{"value": "INFO", "ranks": [*range(8)]}], "differs": False}
    ]


def test_blocked_port_is_one_finding(made: Coordinator) -> None:
    found = sound()
    for rank in range(8):
        if rank != 5:
            fail(found, rank, 5)
    assert findings(made, found) == [("unreachable", (5,), "10.0.0.5:4005 (eth0)")]


def test_rank_that_reaches_nobody(made: Coordinator) -> None:
    found = sound()
    for other in range(8):
        if other != 5:
            fail(found, 5, other)
    assert findings(made, found) == [("cut off", (5,), "eth0")]


def test_one_pair(made: Coordinator) -> None:
    found = sound()
    fail(found, 2, 6)
    assert findings(made, found) == [("pair", (2, 6), "10.0.0.6:4006 (eth0)")]


def test_network_on_which_nobody_reaches_anybody(made: Coordinator) -> None:
    """No rank is odd: the interface is."""
    found = sound()
    for rank in range(8):
        for other in range(8):
            if other != rank:
                fail(found, rank, other)
    assert findings(made, found) == [("unreachable", (*range(8),), "eth0")]


def test_loopback_address_among_several_hosts(made: Coordinator) -> None:
    found = sound()
    found.pairs[6].messages[0]["listening"][1] = "127.0.1.1"
    (only,) = findings(made, found)
    assert only[:2] == ("loopback", (6,))


def test_consequences_of_a_rank_that_is_gone_are_left_out(made: Coordinator) -> None:
    found = sound()
    made.members[3].gone = "its process has ended"
    for rank in range(8):
        if rank != 3:
            fail(found, rank, 3, "connecting failed: Connection refused")
            found.collectives["gloo"][rank] = job({"error": "Connection closed by peer"})
    assert findings(made, found) == [("gone", (3,), "node0")]


def test_rank_that_stays_behind_in_a_collective(made: Coordinator) -> None:
    """All are killed at the deadline; the odd one is that in an earlier stage."""
    found = sound()
    for rank in range(8):
        found.collectives["gloo"][rank] = job({"stage": "group" if rank == 4 else "barrier"})
    (only,) = findings(made, found)
    assert only[:2] == ("collective", (4,))


def test_rank_that_does_not_even_give_up(made: Coordinator) -> None:
    """The others end at their deadline, in the stage in which it hangs."""
    found = sound()
    for rank in range(8):
        stage = {"stage": "all-reduce"}
        found.collectives["gloo"][rank] = job(stage) if rank == 4 else job(stage, {"error": "timed out"})
    (only,) = findings(made, found)
    assert only[:2] == ("collective", (4,))


def test_collective_in_which_all_hang_names_the_pair_that_cannot(made: Coordinator) -> None:
    found = sound()
    for rank in range(8):
        found.collectives["gloo"][rank] = job({"stage": "all-reduce"})
    assert findings(made, found) == [("collective", (*range(8),), "all-reduce")]
    found.collective_pairs["gloo"] = {
        1: job({"pair": 0, "error": ""}, {"pair": 7, "error": "timed out"}),
        7: job({"pair": 1, "error": "timed out"}),
    }
    assert findings(made, found) == [("pair", (1, 7), "10.0.0.7:4007 (eth0)")]


def test_rank_that_all_broken_pairs_have_in_common(made: Coordinator) -> None:
    """One finding, though that rank reports nothing itself; two pairs without a rank in common are two."""
    found = sound()
    for rank in range(8):
        found.collectives["gloo"][rank] = job({"stage": "barrier"})
    alone = {rank: job({"pair": 4, "error": "timed out"}) for rank in range(8) if rank != 4}
    found.collective_pairs["gloo"] = alone
    assert findings(made, found) == [("collective", (4,), "10.0.0.4:4004 (eth0)")]
    found.collective_pairs["gloo"] = {
        1: job({"pair": 7, "error": "timed out"}),
        2: job({"pair": 5, "error": "timed out"}),
    }
    assert [each[1] for each in findings(made, found)] == [(1, 7), (2, 5)]


@pytest.mark.parametrize(
    ("fact", "value", "code"),
    [
        ("rate", 5e14, "slow device"),
        ("clock_mhz", 900.0, "low clock"),
        ("free_bytes", 20 << 30, "little memory"),
    ],
)
def test_device_that_lags(fact: str, value: float, code: str, made: Coordinator) -> None:
    found = sound()
    found.measured[0][6][fact] = value
    assert findings(made, found) == [(code, (6,), "cuda:0")]


def test_devices_are_compared_with_their_like_alone(made: Coordinator) -> None:
    found = sound()
    found.devices[6].messages[0]["devices"] = ["L4"]
    found.measured[0][6]["rate"] = 6e13
    assert findings(made, found) == []


def test_folder_that_hangs_lags_or_fails(made: Coordinator) -> None:
    found = sound()
    found.folders = []
    for rank in range(8):
        found.folders.append((rank, job({"stage": "fsync"}, ended="deadline", path="/frozen")))
        slow = {"result": {"seconds": {"fsync": 30.0 if rank == 2 else 0.1}}}
        found.folders.append((rank, job(slow, ended="done", path="/slow")))
    found.folders.append(
        (1, job({"stage": "create"}, {"error": "PermissionError"}, ended="done", path="/no"))
    )
    assert findings(made, found) == [
        ("folder hangs", (*range(8),), "/frozen"),
        ("folder error", (1,), "/no"),
        ("slow folder", (2,), "/slow"),
    ]


def test_rank_that_answers_late(made: Coordinator) -> None:
    """One that is late beside the others; not all of them on a machine that is slow."""
    found = sound()
    for rank, member in made.members.items():
        member.watched_s, member.late_s = 6.0, 4.0 if rank == 7 else 0.2
    assert findings(made, found) == [("held up", (7,), "node1")]
    for member in made.members.values():
        member.late_s = 3.0
    assert findings(made, found) == []
    made.members[2].asked_at = time.monotonic() - SILENT_S - 60
    assert findings(made, found) == [("held up", (2,), "node0")]


def test_missing_ranks_and_versions(made: Coordinator) -> None:
    found = sound()
    for rank in (0, 1):
        made.members.pop(rank).line.close()
    for results in (found.pairs, found.devices, found.collectives["gloo"], found.measured[0]):
        del results[0], results[1]
    found.folders = found.folders[2:]
    made.members[5].torch = TORCH | {"version": "2.4"}
    assert findings(made, found) == [("missing", (0, 1), "node0"), ("versions", (5,), "")]


def test_torch_without_distributed(made: Coordinator) -> None:
    """Collectives cannot be tried then, so that all is not well."""
    made.members[3].torch = TORCH | {"has_distributed": False}
    assert findings(made, sound()) == [("no distributed", (3,), "node0")]


def uuids(found: Results, rank: int, *wanted: str) -> None:
    found.devices[rank].newest("devices")["uuids"] = [*wanted]  # type: ignore[index]


def test_lost_device_of_one_rank(made: Coordinator) -> None:
    """It sees none, while others do; or it shares that of another rank of its host."""
    found = sound()
    uuids(found, 6, "")
    assert findings(made, found) == [("missing device", (6,), "node1")]
    uuids(found, 6, "u7")
    assert findings(made, found) == [("missing device", (6, 7), "node1")]


def test_lost_device_of_one_host(made: Coordinator) -> None:
    """Ranks of one host share eight devices, those of the other seven; and shares that differ by themselves."""
    found = sound()
    for rank in range(8):
        uuids(found, rank, f"u{rank}", f"v{rank}")
    assert findings(made, found) == []
    uuids(found, 5, "u5")
    assert findings(made, found) == [("missing device", (4, 5, 6, 7), "node1")]
    for rank in (1, 2):
        uuids(found, rank, f"u{rank}")
    uuids(found, 3, "u3", "v3", "w3")
    assert findings(made, found) == []


def test_devices_that_all_ranks_share(made: Coordinator) -> None:
    found = sound()
    for rank in range(8):
        uuids(found, rank, f"u{rank // 2}")
    assert findings(made, found) == []


def test_settings_that_differ_are_marked(made: Coordinator) -> None:
    made.members[4].settings = {"NCCL_DEBUG": "WARN"}
    (only,) = report.report(made, sound())["settings"]
    assert only["differs"] and only["values"][1] == {"value": "WARN", "ranks": [4]}
