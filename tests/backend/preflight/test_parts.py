"""Parts of preflight that need no job: places, pairings, messages, checks with deadlines, and names of findings."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest

from logclient.errors import BadArgument
from logclient_backend.preflight import collectives, devices, folders, network, pairs, place
from logclient_backend.preflight.check import Check
from logclient_backend.preflight.lines import MAX_BYTES, Line, Message
from logclient_backend.preflight.results import names

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without a launcher."""
    for name in [name for name in os.environ if name in LAUNCHERS or name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def set_all(env: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        env.setenv(name, value)


def test_place_of_a_process_on_its_own(env: pytest.MonkeyPatch) -> None:
    found = place.find_place()
    assert (found.rank, found.ranks, found.address, found.ports) == (0, 1, "127.0.0.1", ())


def test_place_of_a_torchrun_rank(env: pytest.MonkeyPatch) -> None:
    """Ports behind that of torchrun's own store; another launch or restart has another token."""
    set_all(env, RANK="3", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4", MASTER_ADDR="node1", MASTER_PORT="29500")
    set_all(env, TORCHELASTIC_RUN_ID="one")
    found = place.find_place()
    assert (found.rank, found.ranks, found.address) == (3, 8, "node1")
    assert found.ports == tuple(range(29501, 29501 + place.PORTS))
    assert place.find_place(7000).ports == (7000,)
    env.setenv("RANK", "4")
    assert place.find_place().token == found.token
    env.setenv("TORCHELASTIC_RUN_ID", "two")
    assert place.find_place().token != found.token


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node003", "node003"),
        ("node[003-010,12],other", "node003"),
        ("a,b", "a"),
        ("gpu-[7,9]", "gpu-7"),
        ("rack[1-2]-n", "rack1-n"),
    ],
)
def test_place_of_a_step_of_slurm(hosts: str, first: str, env: pytest.MonkeyPatch) -> None:
    """The first host of the step; ports that follow from the step."""
    set_all(env, SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="16")
    env.setenv("SLURM_STEP_NODELIST", hosts)
    found = place.find_place()
    assert (found.rank, found.ranks, found.address) == (1, 16, first)
    assert found.ports == place.find_place().ports and len(found.ports) == place.PORTS


def test_place_without_an_address(env: pytest.MonkeyPatch) -> None:
    set_all(env, RANK="1", WORLD_SIZE="2")
    with pytest.raises(BadArgument, match="MASTER_ADDR"):
        place.find_place()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 9, 65, 100])
def test_each_two_ranks_meet_in_the_same_round(ranks: int) -> None:
    """A rank's partner has it as its own partner; up to a number of ranks each meets each."""
    lists = [collectives._partners(rank, ranks) for rank in range(ranks)]
    met = [(rank, other) for rank in range(ranks) for other in lists[rank]]
    assert sorted(met) == sorted((other, rank) for rank, other in met)
    assert all(rank != other for rank, other in met)
    if ranks <= pairs.ALL_UP_TO:
        assert len(set(met)) == ranks * (ranks - 1)
    waiting = {rank: list(each) for rank, each in enumerate(lists)}  # each waits for its next partner
    while any(waiting.values()):
        ready = [rank for rank, each in waiting.items() if each and waiting[each[0]][:1] == [rank]]
        assert ready, "all wait for each other"
        for rank in ready:
            waiting[rank].pop(0)


def test_connections_reach_every_rank() -> None:
    ranks = [*range(200)]
    assert len(pairs.partners(0, ranks[:64])) == 63
    reached, new = {0}, {0}
    while new:
        new = {other for rank in new for other in pairs.partners(rank, ranks)} - reached
        reached |= new
    assert len(reached) == 200 and len(pairs.partners(0, ranks)) < 20


@pytest.mark.parametrize(
    ("count", "local", "wanted"),
    [
        (8, 8, [[0], [1]]),
        (8, 1, [[*range(8)]]),
        (8, 2, [[0, 2, 4, 6], [1, 3, 5, 7]]),
        (1, 2, [[0], [0]]),
        (0, 2, [[], []]),
    ],
)
def test_devices_are_shared_out(count: int, local: int, wanted: list[list[int]]) -> None:
    assert [devices.own_indexes(count, rank, local) for rank in range(len(wanted))] == wanted


def test_names_of_ranks() -> None:
    assert names([5]) == "rank 5"
    assert names([3, 0, 1, 2, 7]) == "ranks 0 to 3, 7"
    assert names([1, 2]) == "ranks 1, 2"


def test_line_carries_messages_in_both_directions() -> None:
    """In pieces or several at once; more than a socket takes waits."""
    one, other = (Line(sock) for sock in socket.socketpair())
    one.send({"a": 1})
    one.send({"b": [2]})
    assert other.wait(10) == [{"a": 1}, {"b": [2]}]
    big = {"x": "y" * (2 << 20)}
    other.send(big)
    assert other.is_waiting
    found: list[Message] = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        other.flush()
        found = one.wait(0.01)
    assert found == [big]
    one.close()
    assert other.wait(10) == [] and other.is_closed
    other.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"x" * (MAX_BYTES + 2)])
def test_line_closes_on_what_is_no_message(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    theirs.setblocking(False)
    deadline = time.monotonic() + 30
    while garbage and not line.is_closed and time.monotonic() < deadline:
        try:
            garbage = garbage[theirs.send(garbage) :]
        except (BlockingIOError, BrokenPipeError):
            pass
        assert line.receive() == []
    line.receive()
    assert line.is_closed
    line.close()
    theirs.close()


def ended(check: Check) -> list[Message]:
    """All messages of a check, once it is over."""
    found: list[Message] = []
    deadline = time.monotonic() + 60
    while not check.ended and time.monotonic() < deadline:
        found += check.poll()
        time.sleep(0.005)
    assert check.ended
    return found


def test_check_reports_its_result_or_its_error() -> None:
    def fine(line: Line, given: dict[str, Any]) -> Message:
        line.send({"stage": "middle"})
        return {"twice": 2 * given["number"]}

    def fails(line: Line, given: dict[str, Any]) -> Message:
        raise ZeroDivisionError("no\n  reason\nException raised from c10:\nframe #0")

    check = Check(1, fine, {"number": 4}, 60)
    assert ended(check) == [{"stage": "middle"}, {"result": {"twice": 8}}] and check.ended == "done"
    check = Check(1, fails, {}, 60)
    assert ended(check) == [{"error": "ZeroDivisionError: no reason"}]


def test_check_is_killed_at_its_deadline() -> None:
    """Whatever it does with signals; what it said before is there, and it is no child any more."""

    def hangs(line: Line, given: dict[str, Any]) -> Message:
        line.send({"stage": "hanging"})
        while True:
            time.sleep(60)

    check = Check(1, hangs, {}, 0.5)
    assert ended(check) == [{"stage": "hanging"}] and check.ended == "deadline"
    with pytest.raises(ChildProcessError):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            os.waitpid(check.pid, os.WNOHANG)
            time.sleep(0.01)


def test_check_that_dies_is_named_by_its_signal() -> None:
    def dies(line: Line, given: dict[str, Any]) -> Message:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    check = Check(1, dies, {}, 60)
    ended(check)
    assert check.ended == f"signal {int(signal.SIGSEGV)}"


def test_check_holds_nothing_of_its_parent() -> None:
    """Neither descriptors nor streams: who reads our output does not wait for a child that cannot be killed."""

    def lists(line: Line, given: dict[str, Any]) -> Message:
        return {
            name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name != "3"
        }

    read_end, write_end = os.pipe()
    check = Check(1, lists, {}, 60)
    (message,) = ended(check)
    os.close(read_end)
    os.close(write_end)
    held = {name: target for name, target in message["result"].items() if "/proc/" not in target}
    sockets = [target for target in held.values() if target.startswith("socket:")]
    assert len(sockets) == 1
    assert {target for target in held.values() if target not in sockets} == {os.devnull}


def test_folder_check_leaves_nothing(tmp_path: Any) -> None:
    one, other = (Line(sock) for sock in socket.socketpair())
    found = folders.check(one, {"path": str(tmp_path)})
    assert (
        set(found["seconds"]) == {"stat", "create", "write", "fsync", "rename", "read"}
        and found["free_bytes"]
    )
    assert [each["stage"] for each in other.wait(10)][-1] == "remove"
    one.close()
    other.close()
    assert not [*tmp_path.iterdir()]


def test_address_is_that_of_the_interface_that_gloo_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert network.own_address()[:2] == ("lo", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none7")
    with pytest.raises(OSError, match=r"none7.*there are: .*lo"):
        network.own_address()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    found = network.own_address()
    network.listener(found.ip, 0, 1).close()
