"""What a collector takes over the real wire, and what it refuses, with which words."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from logclient_backend.collector import tokens
from logclient_backend.collector.store.interface import StoreFull
from logclient_backend.wire import client as wire
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, NotTaken, digest
from tests.ingest import records
from tests.process.disturbed import wait_until

from ..runs.build import NodeMaker
from .conftest import Inside

Start = Callable[..., Inside]


def test_rows_are_stored_once_and_the_next_conversation_is_told(start: Start) -> None:
    """Whatever is sent again, by whoever."""
    inside = start()
    first = inside.client()
    first.send(records(1, 100))
    first.send(records(101, 50))
    assert first.settle() == [Ack(1), Ack(2)] or inside.value("parcels_total") == 2
    second = inside.client()
    assert second.welcome.collector == inside.store.id
    assert second.welcome.held[b"s" * 16].stored.ranges() == [(1, 150)]
    second.send(records(51, 150))
    second.settle()
    run = inside.store.reader.run("mlp")
    assert run.records == 200 and inside.value("repeated_records_total") == 100
    found = inside.store.reader.points("mlp", "loss")
    assert found.values.tolist() == [float(number) for number in range(1, 201)]


def test_documents_become_what_lists_show(start: Start, tmp_path: Path) -> None:
    """And their digest is told to who comes next."""
    inside = start()
    made = NodeMaker(tmp_path, "mlp")
    made.process(1, documents={"config": {"lr": 0.5}, "about": {"name": "first"}})
    content = json.dumps({**made.content(), "closed": False}).encode()
    client = inside.client(node=made.node)
    client.send(records(1, 3), documents=content)
    client.settle()
    run = inside.store.reader.run("mlp")
    assert (run.description.name, run.description.config, run.description.state) == (
        "first",
        {"lr": 0.5},
        "running",
    )
    assert inside.client(node=made.node).welcome.documents_digest == digest(content)


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    "id", ["../../../tmp/x", "a/../b", "/etc", "%2e%2e", "'; DROP TABLE runs; --", "損失"]
)
def test_awkward_ids_are_stored_under_themselves(start: Start, tmp_path: Path, id: str) -> None:
    """Nothing outside the store is made."""
    inside = start()
    before = set(os.listdir(tmp_path))
    client = inside.client(run=id, node="../n")
    client.send(records(1, 1, names=("../k", id)))
    client.settle()
    assert inside.store.reader.run(id).id == id
    assert [key.name for key in inside.store.reader.keys(id).keys] == ["../k", id]
    assert set(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("id", ["a\0b", "a\nb", "\x1b[31m"])
def test_ids_that_no_run_can_have_are_refused_for_good(start: Start, id: str) -> None:
    """With a sentence."""
    refused = start().refused(run=id)
    assert refused.is_final and "control character" in refused.text


@pytest.mark.parametrize("token", ["", "lct_wrong", "x" * 500])
def test_without_a_token_of_ours_nothing_is_taken_or_told(start: Start, token: str) -> None:
    """Neither which runs there are; the client tries again seldom."""
    inside = start()
    for run in ("mlp", "\0"):
        refused = inside.refused(token, run=run)
        assert refused.reason == "unauthorized" and not refused.is_final
        assert refused.retry_after_s == 60.0 and "logclient server token add" in refused.text
        assert not token or token not in refused.text
    assert inside.store.reader.run("mlp") is None
    described = wire.describe(Access(inside.collector.address, token), 60.0)
    assert (described.collector, described.role) == ("", "")
    assert not token or token not in inside.log.getvalue()


def test_roles_decide(start: Start) -> None:
    """Who may only read ships nothing; who may only ship does."""
    inside = start()
    reads = inside.collector.tokens.add("reads", ["read"])
    ships = inside.collector.tokens.add("ships", ["ingest"])
    refused = inside.refused(reads)
    assert refused.reason == "unauthorized" and "reads" in refused.text and "ingest" in refused.text
    client = inside.client(ships)
    client.send(records(1, 1))
    client.settle()
    assert wire.describe(Access(inside.collector.address, reads), 60.0).role == "read"


def test_revoked_token_ends_its_conversations(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their next word."""
    monkeypatch.setattr(tokens, "LOOK_S", -1.0)
    inside = start()
    client = inside.client(inside.collector.tokens.add("job", ["ingest"]))
    client.send(records(1, 1))
    client.settle()
    inside.collector.tokens.revoke("job")
    client.send(records(2, 1))
    with pytest.raises(NotTaken, match="revoked") as caught:
        client.settle()
    assert caught.value.reason == "unauthorized"
    assert inside.store.reader.run("mlp").records == 1


def test_revoked_token_ends_a_silent_conversation(start: Start) -> None:
    """Within seconds, though its client sends nothing and waits for nothing."""
    inside = start()
    client = inside.client(inside.collector.tokens.add("job", ["ingest"]))
    client.send(records(1, 1))
    client.settle()
    inside.collector.tokens.revoke("job")
    ended: list[NotTaken] = []

    def has_ended() -> bool:
        try:
            client.session.poll(0.1)
        except NotTaken as refused:
            ended.append(refused)
        return bool(ended)

    wait_until(has_ended, 8, "it ends")  # an agent that has nothing to send says so every 10 s
    assert ended[0].reason == "unauthorized" and "revoked" in ended[0].text


def test_deleted_run_takes_no_more_until_it_is_asked_for(start: Start) -> None:
    """Neither through a conversation that is open, nor a new one; `revive` is the way."""
    inside = start()
    client = inside.client()
    client.send(records(1, 10))
    client.settle()
    assert inside.collector.delete("mlp") and not inside.collector.delete("no such run")
    client.send(records(11, 10))
    with pytest.raises(NotTaken) as caught:
        client.settle()
    assert (caught.value.reason, caught.value.is_final) == ("deleted", True)
    refused = inside.refused()
    assert (refused.reason, refused.is_final) == ("deleted", True) and "--revive" in refused.text
    again = inside.client(revive=True)
    assert again.welcome.held[b"s" * 16].stored.ranges() == [(1, 10)]
    again.send(records(11, 10))
    again.settle()
    assert inside.store.reader.run("mlp").records == 20


def test_one_key_or_stream_too_many_costs_its_parcel_alone(start: Start) -> None:
    """What is there already goes on, also after a restart."""
    token = None
    for _ in range(2):
        inside = start(run_keys=3, run_streams=2)
        token = token or inside.token
        client = inside.client(token)
        client.send(records(1, 1, names=("a", "b")))
        client.send(records(2, 1, names=("c", "d")))
        client.send(records(3, 1, names=("a", "c")))
        client.send(records(1, 1, stream=b"t" * 16))
        client.send(records(4, 1, names=("b",)))
        client.send(records(1, 1, stream=b"u" * 16, names=("a",)))
        refused = [each for each in client.settle() if isinstance(each, NotTaken)]
        # keys a, b, c are taken, so "loss" is one too many as well
        assert [(each.parcel, each.is_final, each.reason) for each in refused] == [
            (2, True, "invalid"),
            (4, True, "invalid"),
            (6, True, "invalid"),
        ]
        assert inside.store.reader.run("mlp").records == 3
        inside.stop()


def test_documents_that_are_too_large_cost_their_parcel_alone(start: Start) -> None:
    """Told with the limit."""
    inside = start(documents_bytes=1000)
    client = inside.client()
    client.send(documents=b'{"a": "' + b"x" * 1000 + b'"}')
    client.send(records(1, 1))
    refused = [each for each in client.settle() if isinstance(each, NotTaken)]
    assert len(refused) == 1 and "1,000" in refused[0].text and refused[0].is_final
    assert inside.store.reader.run("mlp").records == 1


def test_more_conversations_than_a_run_may_have_come_again_later(start: Start) -> None:
    """Others are not held up by them."""
    inside = start(run_conversations=2)
    for node in ("a", "b"):
        inside.client(node=node)
    refused = inside.refused(node="c")
    assert refused.reason == "busy" and not refused.is_final and refused.retry_after_s == 5.0
    inside.client(run="other")
    inside.clients[0].close()
    wait_until(lambda: inside.collector.wire.conversations == 2, 60, "the first is over")
    inside.client(node="c")


def test_stop_tells_conversations_and_keeps_what_it_acknowledged(start: Start) -> None:
    """The client is told to come again, and what is asked of a new process on the same folder is there."""
    inside = start()
    client = inside.client()
    client.send(records(1, 100))
    client.settle()
    token = inside.token
    inside.stop()
    with pytest.raises(NotTaken) as caught:
        while True:
            client.session.poll(60.0)
    assert caught.value.reason in ("stopping", "unreachable") and not caught.value.is_final
    again = start()
    assert again.token == "", "a token is shown once"
    assert again.client(token).welcome.held[b"s" * 16].stored.ranges() == [(1, 100)]


def test_last_seen_is_kept_for_who_has_nothing_to_say(start: Start) -> None:
    """By the collector's clock."""
    inside = start()
    client = inside.client()
    client.send(records(1, 1))
    client.settle()
    before = inside.store.reader.run("mlp").last_seen_ns
    client.session._sent_at = -1e9
    client.session.keep_alive()
    wait_until(lambda: inside.store.reader.run("mlp").last_seen_ns > before, 60, "it was seen")


def test_upload_of_an_old_run_does_not_make_it_look_alive(start: Start, tmp_path: Path) -> None:
    """It was heard when its agent wrote its documents last."""
    inside = start()
    made = NodeMaker(tmp_path, "old")
    made.process(1)
    client = inside.client(run="old", node=made.node, is_sync=True)
    client.send(records(1, 1), documents=json.dumps(made.content()).encode())
    client.settle()
    assert inside.store.reader.run("old").last_seen_ns <= made.heard_ns


def test_no_auth_takes_whoever_comes(start: Start) -> None:
    """The explicit flag; no token is made."""
    inside = start(settings={"no_auth": True})
    assert inside.token == "" and not inside.collector.settings.data.has_tokens
    inside.client("")


def test_parcels_that_unpack_to_much_wait_for_each_other(start: Start) -> None:
    """A few kilobytes become megabytes: what is unpacked at once is bounded, and all of it comes through."""
    inside = start(unpacked_bytes=4 << 20, queue_bytes=4 << 20)
    clients = [inside.client(run=f"run{number}") for number in range(8)]
    zeros = array("Q", bytes(8 * 60_000))
    for client in clients:
        made = records(1, 60_000)
        made.columns.cells = [zeros]
        client.send(made)
    for client in clients:
        assert not [each for each in client.settle() if isinstance(each, NotTaken)]
    assert inside.value("records_total") == 8 * 60_000


def test_store_that_cannot_be_read_is_told_with_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client comes again, and the collector goes on."""
    inside = start()

    def fails(run: str, node: str) -> None:
        raise StoreFull("the disk is failing")

    with monkeypatch.context() as patch:
        patch.setattr(type(inside.store.reader), "held", lambda self, run, node: fails(run, node))
        refused = inside.refused()
    assert (refused.reason, refused.is_final, refused.retry_after_s) == ("disk", False, 10.0)
    client = inside.client()
    client.send(records(1, 1))
    client.settle()
