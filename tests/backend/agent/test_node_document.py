"""The node's documents: what is kept of thousands of ended processes, and what it costs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logclient.shm import layout
from logclient.shm.shm_dir import ShmDir
from logclient_backend.agent.drain.node_document import Ledger
from logclient_backend.agent.host.process_handle import Cause
from logclient_backend.runs.document_head import age_of, is_closed, revision_of

FACTS = {"run_id": "r", "project": "p", "name": "n", "created_ns": 1, "server": "", "node": "ab"}


@pytest.fixture
def shm_dir(tmp_path: Path) -> ShmDir:
    return ShmDir(str(tmp_path), FACTS)


def producer(number: int, role: str = "member", records: int = 1, **documents: Any) -> Any:
    """What the ledger wants of a `Producer`."""
    start = {"role": role, "pid": number, "rank": None, "run_id": "r", "project": "p"}
    kinds = {"start": start, **documents}
    return SimpleNamespace(
        process=number.to_bytes(16, "big"),
        pid=number,
        rank=number % 8,
        created_ns=number,
        created_mono_ns=number,
        found=None,
        is_dropped=False,
        documents={kind: {"time": number, "data": data} for kind, data in kinds.items()},
        documents_seen=1,
        words=dict.fromkeys(range(layout.REFUSED, layout.LEFT_OUT + 1), 0),
        lanes=[
            SimpleNamespace(
                index=0,
                stream=(number + 1000).to_bytes(16, "big"),
                durable=records,
                stored=records,
                damaged=0,
            )
        ],
    )


def parsed(ledger: Ledger) -> dict[str, Any]:
    whole = json.loads(ledger.content()[1])
    assert isinstance(whole, dict)
    return whole


def test_revision_only_grows(shm_dir: ShmDir) -> None:
    """Whoever writes next goes on from the page, from shared memory, or from the run folder: whichever is highest."""
    words = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
    first = Ledger(shm_dir, words)
    made = [revision_of(first.content()[1]) for _ in range(3)]
    assert made == [1, 2, 3] == [*range(1, 1 + words[layout.AGENT_REVISION])]
    again = Ledger(shm_dir, words)
    again.load()
    assert revision_of(again.content()[1]) == 4
    os.unlink(shm_dir.file("ledger.json"))
    assert revision_of(Ledger(shm_dir, words).content()[1]) == 5
    words[layout.AGENT_REVISION] = 0
    of_the_file = Ledger(shm_dir, words)
    of_the_file.load()
    assert revision_of(of_the_file.content()[1]) == 6
    of_the_file.absorb(b'{"version":1,"revision":41,"processes":{},"streams":{}}')
    assert revision_of(of_the_file.content()[1]) == 42 == words[layout.AGENT_REVISION]
    of_the_file.absorb(b'{"version":1,"processes":{},"streams":{}}')  # an earlier build's
    assert parsed(of_the_file)["revision"] == 43


def test_head_says_what_the_parser_says(shm_dir: ShmDir) -> None:
    """Revision, heartbeat and end are found in the bytes, whatever the keys and texts of a user are called."""
    ledger = Ledger(
        ShmDir(shm_dir.path, {**FACTS, "name": '"closed":true,"heard_ns":7,', "project": '"closed'})
    )
    ledger.note(producer(1, "owner", config={"closed": True, "heard_ns": 5, '"closed"': True}))
    for closed in (False, True):
        if closed:
            ledger.close()
        content = ledger.content()[1]
        whole = json.loads(content)
        assert is_closed(content) is whole["closed"] is closed
        assert age_of(content) == (whole["revision"], whole["heard_ns"])
    assert not any(map(is_closed, (b"", b"[]", b'{"closed":1}', b'{"closed":"true"}')))


def test_ended_member_keeps_what_says_something(shm_dir: ShmDir) -> None:
    """PID, rank, counts and end; its start record is dropped, its notices are not."""
    ledger = Ledger(shm_dir)
    plain = producer(1, notices={"alerts": [], "notices": []}, summary={})
    telling = producer(2, notices={"alerts": [], "notices": ["a record was refused"]})
    owner = producer(3, "owner", state={"state": "finished"})
    for each in (plain, telling, owner):
        ledger.note(each)
        ledger.end(each, Cause(0, None), alive=False)
    found = {process["pid"]: process for process in parsed(ledger)["processes"].values()}
    assert found[1]["documents"] == {}
    assert (found[1]["rank"], found[1]["end"]["exit_code"]) == (1, 0)
    assert list(found[2]["documents"]) == ["notices"]
    assert set(found[3]["documents"]) == {"start", "state"}
    plain.lanes[0].durable = plain.lanes[0].stored = (
        9  # the last records become durable after it was seen to end
    )
    ledger.note(plain)
    found = {process["pid"]: process for process in parsed(ledger)["processes"].values()}
    assert found[1]["documents"] == {}
    assert found[1]["end"]["exit_code"] == 0
    assert parsed(ledger)["streams"][plain.lanes[0].stream.hex()]["stored"] == 9


def test_thousands_of_ended_processes_stay_small_and_cheap(shm_dir: ShmDir) -> None:
    """8,000 data-loader workers that logged: under 400 bytes each, and a new version is a copy, not a new encoding."""
    ledger = Ledger(shm_dir)
    for number in range(8_000):
        worker = producer(number)
        ledger.note(worker)
        ledger.end(worker, Cause(0, None), alive=False)
    size = len(ledger.content()[1])
    assert size < 8_000 * 400
    owner = producer(9_000, "owner")
    texts = {id(entry.text) for entry in ledger._entries.values()}
    ledger.note(owner)
    ledger.content()
    assert len(texts & {id(entry.text) for entry in ledger._entries.values()}) == 8_000, (
        "nothing is encoded anew"
    )
    print(f"8,000 processes: {size:,} bytes, {1000 * ledger._cost_s:.1f} ms a version")


def test_the_longer_it_takes_the_less_often_it_is_written(shm_dir: ShmDir) -> None:
    """A twentieth of the time at most, half while somebody waits for it."""
    ledger = Ledger(shm_dir)
    ledger.note(producer(1))
    ledger.content()
    ledger._cost_s = 0.2
    ledger.note(producer(2))
    assert not ledger.is_due(at_once=True)
    ledger._made_at = time.monotonic() - 0.5
    assert ledger.is_due(at_once=True)
    assert not ledger.is_due(at_once=False)
    ledger._made_at = time.monotonic() - 4.1
    assert ledger.is_due(at_once=False)


def test_nothing_that_an_earlier_worker_knew_is_lost(shm_dir: ShmDir, tmp_path: Path) -> None:
    """A successor goes on from tmpfs, and adds what only the run folder still knows."""
    first = Ledger(shm_dir)
    for number in (1, 2):
        first.note(producer(number))
        first.end(producer(number), Cause(number, None), alive=False)
    first.set_aside("x.lanes", "not a lane file")
    on_disk = first.content()[1]
    os.unlink(tmp_path / "ledger.json")  # somebody cleared it, or it was never written: tmpfs was full
    second = Ledger(shm_dir)
    second.load()
    second.note(producer(2, records=5))
    assert not second.has_absorbed
    second.absorb(on_disk)
    found = parsed(second)
    assert {process["pid"] for process in found["processes"].values()} == {1, 2}
    assert found["set_aside"] == [{"file": "x.lanes", "reason": "not a lane file"}]
    assert sum(counts["stored"] for counts in found["streams"].values()) == 6, "what is seen now counts"
    third = Ledger(shm_dir)
    third.load()
    assert parsed(third)["processes"] == found["processes"]


@pytest.mark.parametrize(
    "junk", [b"", b"{", b"[]", b"{}", b'{"streams": 1}', b'{"processes": {"a": 1}}', b"\0\xff"]
)
def test_junk_from_an_earlier_worker_is_no_document(shm_dir: ShmDir, tmp_path: Path, junk: bytes) -> None:
    """What does not parse, or is not what it should be, counts as nothing."""
    (tmp_path / "ledger.json").write_bytes(junk)
    ledger = Ledger(shm_dir)
    ledger.load()
    ledger.absorb(junk)
    assert parsed(ledger)["processes"] == {}
    assert not ledger.has_run


def test_abandoned_init_is_no_run(shm_dir: ShmDir) -> None:
    """`init` raised: nothing of that process makes a run folder; one that logged does."""
    ledger = Ledger(shm_dir)
    ledger.note(producer(1, "owner", records=0, state={"state": "abandoned"}))
    assert not ledger.has_run
    ledger.note(producer(2, records=1))
    assert ledger.has_run


def test_newcomer_opens_a_closed_node_again(shm_dir: ShmDir) -> None:
    """Closed says that nothing more will come; until somebody joins."""
    ledger = Ledger(shm_dir)
    ledger.note(producer(1))
    ledger.close()
    assert parsed(ledger)["closed"]
    ledger.note(producer(2))
    assert not parsed(ledger)["closed"]


def test_version_of_a_process_is_the_first_that_holds_it(shm_dir: ShmDir) -> None:
    """A process may go once that version is on disk, however much others log meanwhile."""
    ledger = Ledger(shm_dir)
    one, other = producer(1), producer(2)
    ledger.note(one)
    ledger.note(other)
    version = ledger.content()[0]
    assert ledger.version_of(one) == ledger.version_of(other) == version
    other.lanes[0].durable += 1
    ledger.note(other)
    assert ledger.version_of(one) == version
    assert ledger.version_of(other) == ledger.content()[0]


def test_what_a_collector_has_is_told_per_stream_also_of_processes_that_are_gone(shm_dir: ShmDir) -> None:
    """Counts of streams follow what was acked, up and (another collector) down; a successor knows them."""
    ledger = Ledger(shm_dir)
    gone, here = producer(1, records=5), producer(2, records=7)
    for each in (gone, here):
        ledger.note(each)
    ledger.end(gone, Cause(0, None), alive=False)
    version = ledger.version_of(gone)
    ledger.let_go(gone)
    assert ledger.missing_there == 12
    first, second = (each.lanes[0].stream.hex() for each in (gone, here))
    ledger.note_acked({first: 5, second: 3, "ab" * 16: 9})
    ledger.ship = {"server": "grpc://h:1", "state": "waiting", "error": "nobody listens"}
    assert ledger.missing_there == 4
    assert ledger.version_of(gone) == version, "its files need not wait for that"
    here.lanes[0].durable = here.lanes[0].stored = 8
    ledger.note(here)
    told = parsed(ledger)
    assert [told["streams"][stream]["acked"] for stream in (first, second)] == [5, 3]
    assert told["ship"] == {"server": "grpc://h:1", "state": "waiting", "error": "nobody listens"}
    successor = Ledger(shm_dir)
    successor.load()
    assert successor.missing_there == 5
    ledger.content()
    assert ledger.is_written
    ledger.note_acked({first: 5, second: 3})
    assert ledger.is_written, "nothing new"
    ledger.note_acked({second: 8})
    assert not ledger.is_written
    assert ledger.missing_there == 5
    told = parsed(ledger)["streams"]
    assert "acked" not in told[first] and told[second]["acked"] == 8
