"""Client and server of the wire together, over loopback: acks, refusals, limits, and the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from logclient.errors import Corrupt
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wire import channel, client, messages
from logclient_backend.wire.address import Address
from logclient_backend.wire.client import Patience, Session, describe
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, Hello, NotTaken, Parcel, digest
from logclient_backend.wire.server import Server
from logclient_backend.wire.service import Limits
from logclient_proto.v1 import ingest_pb2 as pb
from tests.backend.ship.samples import item, stream
from tests.collectors import MemoryCollector
from tests.process.disturbed import wait_until

WAIT_S = 60
SHIP = "/logclient.v1.Ingest/Ship"
HELLO = Hello("run", "node", "test 1")
LIMITS = Limits(conversations=4)

Open = Callable[..., Session]


@pytest.fixture
def collector() -> Iterator[MemoryCollector]:
    with MemoryCollector(limits=LIMITS) as made:
        yield made


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens sessions, and closes them at the end."""
    made: list[Session] = []

    def open_session(collector: MemoryCollector, hello: Hello = HELLO, **more: Any) -> Session:
        session = Session(Access(collector.address, collector.token), hello, **more)
        made.append(session)
        session.open()
        return session

    yield open_session
    for session in made:
        session.close()


def answers(session: Session, wanted: Callable[[list[Ack | NotTaken]], Any]) -> list[Ack | NotTaken]:
    """All answers until these are enough."""
    found: list[Ack | NotTaken] = []

    def look() -> Any:
        found.extend(session.poll(0.5))
        return wanted(found)

    wait_until(look, WAIT_S, "the answers come")
    return found


def failure(session: Session) -> NotTaken:
    """How it ends."""
    with pytest.raises(NotTaken) as caught:
        wait_until(lambda: session.poll(0.5) and False, WAIT_S, "the conversation ends")
    return caught.value


def is_acked(session: Session) -> Callable[[list[Ack | NotTaken]], bool]:
    return lambda found: not session.under_way


def test_what_is_sent_arrives_and_is_acknowledged(collector: MemoryCollector, opened: Open) -> None:
    """Records, holes and documents; and a second conversation is told what is there."""
    session = opened(collector)
    gap = Gap(stream(), b"process-process-", 0, 11, 12, "forgotten")
    session.send(Parcel(0, [item(10)], [gap], b'{"a": 1}'))
    session.send(Parcel(0, [item(5, 13)]))
    found = answers(session, is_acked(session))
    assert [answer for answer in found if isinstance(answer, NotTaken)] == []
    assert session.close(WAIT_S)
    assert collector.node().steps() == [*range(1, 11), *range(13, 18)]
    welcome = Session(Access(collector.address), HELLO).open()
    held = welcome.held[stream()]
    assert held.stored == SeqSet([(1, 10), (13, 17)])
    assert held.gaps == {"forgotten": SeqSet([(11, 12)])}
    assert welcome.documents_digest == digest(b'{"a": 1}')
    assert collector.hellos[0] == HELLO


def test_a_token_arrives_and_shows_nowhere(collector: MemoryCollector, opened: Open) -> None:
    """Without the right one the conversation ends with a sentence."""
    collector.token = "secret"
    opened(collector)
    with pytest.raises(NotTaken, match="opens nothing") as caught:
        Session(Access(collector.address, "wrong"), HELLO).open()
    assert caught.value.reason == messages.UNAUTHORIZED
    assert caught.value.is_final
    assert "secret" not in repr(Access(collector.address, "secret"))


def test_requests_come_after_the_welcome_and_once(collector: MemoryCollector, opened: Open) -> None:
    """All kinds, with texts made harmless; beside acks, and without a word from the client."""
    asked = [
        messages.Request("0" * 16, "stop", True, "a\nb", "alice", 5, 7),
        messages.Request("1" * 16, "save", time_ns=6),
        messages.Request("2" * 16, "clear", step=-3),
    ]
    session = opened(collector)
    talk = collector.talks[0]._replies
    for request in (*asked, *asked):
        talk.ask(request)
    session.send(Parcel(0, [item(10)]))
    answers(session, is_acked(session))
    wait_until(lambda: session.poll(0.1) or len(session.requests) == 3, WAIT_S, "they come")
    assert list(session.requests) == [replace(asked[0], reason="a b"), *asked[1:]]


def test_describe(collector: MemoryCollector) -> None:
    """A question without a conversation."""
    found = describe(Access(collector.address))
    assert (found.collector, found.role) == (collector.id, "ingest")


def test_what_is_under_way_is_bounded(collector: MemoryCollector, opened: Open) -> None:
    """By the collector's window: with no acks there is no room after it, and with them there is again."""
    collector.acks = False
    collector.window_bytes = 50_000
    session = opened(collector)
    sent = 0
    while session.has_room:
        session.send(Parcel(0, [item(200, 1 + 200 * sent)]))
        sent += 1
    assert 2 < sent < 100
    wait_until(lambda: collector.parcels == sent, WAIT_S, "all arrive")
    assert collector.server.bytes_under_way >= 50_000
    collector.talks[0]._replies.ack(sent - 1)
    answers(session, lambda found: session.has_room)
    assert session.under_way == 1


def test_a_client_that_ignores_the_window_waits(collector: MemoryCollector, opened: Open) -> None:
    """The server reads no further than its own bounds, whatever is sent."""
    collector.acks = False
    collector.window_bytes = 50_000
    session = opened(collector)
    session._window_bytes = 1 << 30
    for number in range(60):
        session.send(Parcel(0, [item(200, 1 + 200 * number)]))
    wait_until(lambda: collector.server.bytes_under_way >= 50_000, WAIT_S, "the window fills")
    assert collector.server.bytes_under_way < 60_000
    taken = collector.parcels
    assert taken < 60
    collector.acks = True
    collector.talks[0]._replies.ack(taken)
    answers(session, is_acked(session))
    assert collector.records == 12_000


def test_all_together_are_bounded(opened: Open) -> None:
    """One who finds no room in time is told to come again, and gets in once there is some."""
    limits = replace(LIMITS, most_bytes=15_000, room_s=0.2, retry_after_s=7.0)
    with MemoryCollector(limits=limits) as collector:
        collector.acks = False
        first, second = opened(collector), opened(collector, Hello("run", "other"))
        first.send(Parcel(0, [item(1500)]))
        wait_until(lambda: collector.parcels == 1, WAIT_S, "the first is taken")
        second.send(Parcel(0, [item(1500)]))
        refused = failure(second)
        assert refused.reason == messages.BUSY
        assert refused.retry_after_s == 7.0
        collector.talks[0]._replies.ack(1)
        answers(first, is_acked(first))
        collector.acks = True
        third = opened(collector, Hello("run", "other"))
        third.send(Parcel(0, [item(1500)]))
        answers(third, is_acked(third))


@pytest.mark.slow
def test_more_nodes_than_conversations_take_turns(collector: MemoryCollector, opened: Open) -> None:
    """The one that has had its slot longest is told to come again, and does so; the others go on."""
    sessions = [opened(collector, Hello("run", str(number))) for number in range(LIMITS.conversations)]
    late = opened(collector)
    ended = failure(sessions[0])
    assert ended.reason == messages.BUSY and not ended.is_final and "turns" in ended.text
    assert ended.retry_after_s is not None and ended.retry_after_s <= 1.0
    assert collector.server.conversations == LIMITS.conversations
    for session in (late, *sessions[1:]):
        session.send(Parcel(0, [item(10)]))
        answers(session, is_acked(session))
    opened(collector, Hello("run", "0"))
    assert failure(sessions[1]).reason == messages.BUSY


@pytest.mark.slow
def test_turn_ends_when_all_that_was_sent_is_answered(collector: MemoryCollector, opened: Open) -> None:
    """Nothing that is under way is lost or sent twice by it."""
    collector.acks = False
    first = opened(collector)
    first.send(Parcel(0, [item(10)]))
    wait_until(lambda: collector.parcels, WAIT_S, "it is taken")
    for number in range(LIMITS.conversations - 1):
        opened(collector, Hello("run", str(number)))
    found: list[Session] = []
    waiting = threading.Thread(target=lambda: found.append(opened(collector, Hello("run", "late"))))
    waiting.start()
    wait_until(lambda: collector.talks[0]._replies._is_closing, WAIT_S, "the first is asked to end")
    first.poll(0.1)
    assert first.under_way == 1 and not found
    collector.talks[0]._replies.ack(1)
    answers(first, is_acked(first))
    assert failure(first).reason == messages.BUSY
    waiting.join(WAIT_S)
    assert found


@pytest.mark.parametrize("size", [4097, 1 << 20])
def test_hello_is_small(collector: MemoryCollector, size: int) -> None:
    """A larger one is refused, also one that would be read all the same."""
    hello = pb.ShipRequest(hello=pb.Hello(protocol=2, run="run", node="n", client="x" * size))
    with grpc.insecure_channel(collector.address.target) as made:
        call: Any = made.stream_stream(SHIP, request_serializer=None, response_deserializer=None)
        replies = call(iter([hello.SerializeToString()]), timeout=WAIT_S)
        with pytest.raises(grpc.RpcError):
            list(replies)
        assert replies.code() is grpc.StatusCode.INVALID_ARGUMENT and "4096" in replies.details()


@pytest.mark.slow
def test_silent_conversations_are_bounded(opened: Open) -> None:
    """Those that have begun and say no hello are bounded, and let go by a deadline."""
    limits = Limits(conversations=4, greeting=4, hello_s=3.0)
    with MemoryCollector(limits=limits) as collector, grpc.insecure_channel(collector.address.target) as made:
        call: Any = made.stream_stream(SHIP, request_serializer=None, response_deserializer=None)
        silent = threading.Event()
        codes: list[grpc.StatusCode] = []

        def stay_silent() -> None:
            try:
                list(call(_nothing_until(silent), timeout=WAIT_S))
            except grpc.RpcError as error:
                codes.append(error.code())

        for _ in range(6):
            threading.Thread(target=stay_silent, daemon=True).start()
        wait_until(lambda: len(codes) >= 4, WAIT_S, "those beyond are refused")
        assert codes[:4] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
        with pytest.raises(NotTaken, match="sent their hello"):
            opened(collector)  # with the same token
        wait_until(lambda: len(codes) == 6, WAIT_S, "the silent ones are let go")
        opened(collector)
        silent.set()


def _nothing_until(end: threading.Event) -> Iterator[bytes]:
    end.wait(WAIT_S)
    yield from ()


def test_a_parcel_that_is_refused_costs_that_parcel_alone(collector: MemoryCollector, opened: Open) -> None:
    """The conversation goes on behind it, and the ack passes over it."""

    def refuse(parcel: Parcel) -> None:
        if parcel.number == 2:
            raise NotTaken("the second is not wanted", messages.INVALID, is_final=True)
        if parcel.number == 3:
            raise Corrupt("parcel", 0, "another", "this")

    collector.on_parcel = refuse
    session = opened(collector)
    for number in range(4):
        session.send(Parcel(0, [item(10, 1 + 10 * number)]))
    found = answers(session, is_acked(session))
    refused = [(answer.parcel, answer.is_final) for answer in found if isinstance(answer, NotTaken)]
    assert refused == [(2, True), (3, True)]
    assert collector.node().steps() == [*range(1, 11), *range(31, 41)]


def test_a_refusal_for_now_ends_the_conversation(collector: MemoryCollector, opened: Open) -> None:
    """With its reason and the time not before which to come again."""

    def refuse(parcel: Parcel) -> None:
        raise NotTaken("the disk is full", messages.DISK, retry_after_s=3.5)

    collector.on_parcel = refuse
    session = opened(collector)
    session.send(Parcel(0, [item(10)]))
    refused = failure(session)
    assert (str(refused), refused.reason, refused.retry_after_s, refused.is_final) == (
        "the disk is full",
        messages.DISK,
        3.5,
        False,
    )


def test_a_parcel_that_does_not_check_is_refused_and_the_rest_taken_later(
    collector: MemoryCollector, opened: Open
) -> None:
    """What came before it is acknowledged; the conversation has to begin again behind it."""
    session = opened(collector)
    session.send(Parcel(0, [item(10)]))
    bad = item(10, 11)
    bad.columns.seq[5] = 3  # not rising
    session.send(Parcel(0, [bad]))
    session.send(Parcel(0, [item(10, 21)]))
    found = []
    with pytest.raises(NotTaken, match="begin again") as caught:
        wait_until(lambda: found.extend(session.poll(0.5)), WAIT_S, "the conversation ends")
    assert not caught.value.is_final
    assert Ack(1) in found or Ack(2) in found
    (refused,) = [answer for answer in found if isinstance(answer, NotTaken)]
    assert (refused.parcel, refused.is_final) == (2, True)
    assert collector.node().steps() == list(range(1, 11))


def test_a_parcel_that_is_too_large_is_not_sent(opened: Open) -> None:
    """The client knows the limit; one that does not is refused that parcel."""
    with MemoryCollector(limits=replace(LIMITS, most_parcel_bytes=10_000)) as collector:
        session = opened(collector)
        assert not session.send(Parcel(0, [item(5000)]))
        assert session.send(Parcel(0, [item(10)]))
        answers(session, is_acked(session))
        session._most_parcel_bytes = 1 << 20
        session.send(Parcel(0, [item(2000, 11)]))
        refused = answers(session, lambda found: any(isinstance(answer, NotTaken) for answer in found))
        assert any(isinstance(answer, NotTaken) and answer.parcel == 2 for answer in refused)


def test_a_parcel_that_would_not_fit_into_memory_is_refused(
    opened: Open,
) -> None:
    """A small message that becomes a large one is not unpacked."""
    with MemoryCollector(limits=replace(LIMITS, most_unpacked_bytes=100_000)) as collector:
        session = opened(collector)
        session.send(Parcel(0, [item(5000, width=0)]))  # 160 kB of numbers, told as strides
        (refused,) = [
            answer
            for answer in answers(session, lambda found: any(isinstance(each, NotTaken) for each in found))
            if isinstance(answer, NotTaken)
        ]
        assert "unpacked" in str(refused)


def test_more_key_tables_than_are_kept_are_told_anew(
    collector: MemoryCollector, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that never logs the same keys twice ships all the same."""
    monkeypatch.setattr(client, "_MAX_TABLES", 5)
    session = opened(collector)
    for number in range(30):
        width = 1 + number % 12
        session.send(Parcel(0, [item(1, 1 + number, width=width), item(1, 1 + number, of=stream(2))]))
    answers(session, is_acked(session))
    assert collector.node().steps() == sorted([*range(1, 31), *range(1, 31)])


def test_a_client_that_says_nothing_is_let_go(opened: Open) -> None:
    """One that falls silent; one that only says that it is there stays."""
    limits = replace(LIMITS, silence_s=1.0)
    with MemoryCollector(limits=limits) as collector:
        silent = opened(collector, patience=Patience(alive_s=3600))
        there = opened(collector, Hello("run", "there"), patience=Patience(alive_s=0.1))

        def look() -> bool:
            there.keep_alive()
            return there.poll(0.1) is not None and len(collector.talks) > 1 and bool(collector.talks[0].why)

        wait_until(look, WAIT_S, "the silent one is let go")
        assert "sends nothing" in str(failure(silent))
        assert collector.talks[1].why == ""


def test_a_caller_without_a_hello_is_let_go() -> None:
    """It holds a slot among the conversations no longer than that."""
    with MemoryCollector(limits=replace(LIMITS, hello_s=0.3)) as collector:
        connection = channel.open_channel(Access(collector.address))
        never = threading.Event()
        try:
            call = connection.stream_stream("/logclient.v1.Ingest/Ship", bytes, bytes)(
                iter(lambda: never.wait(WAIT_S) or b"", None)
            )
            with pytest.raises(grpc.RpcError, match="sends nothing"):
                list(call)
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
        finally:
            never.set()
            connection.close()


def test_stopping_commits_what_was_taken(collector: MemoryCollector, opened: Open) -> None:
    """What is under way is acknowledged within the grace; then the client is told to come again."""
    collector.acks = False
    session = opened(collector)
    session.send(Parcel(0, [item(10)]))
    wait_until(lambda: collector.parcels == 1, WAIT_S, "it is taken")
    talk = collector.talks[0]

    def commit_late() -> None:
        wait_until(lambda: collector.server._is_stopping, WAIT_S, "it is being stopped")
        talk._replies.ack(1)

    committing = threading.Thread(target=commit_late)
    committing.start()
    assert collector.stop(WAIT_S)
    committing.join()
    found = []
    with pytest.raises(NotTaken) as caught:
        wait_until(lambda: found.extend(session.poll(0.5)), WAIT_S, "the conversation ends")
    assert Ack(1) in found
    assert caught.value.reason == messages.STOPPING
    assert talk.why


def test_stopping_waits_no_longer_than_it_may(collector: MemoryCollector, opened: Open) -> None:
    """With a store that hangs."""
    collector.acks = False
    session = opened(collector)
    session.send(Parcel(0, [item(10)]))
    wait_until(lambda: collector.parcels == 1, WAIT_S, "it is taken")
    assert not collector.stop(0.2)
    failure(session)


def test_a_fault_in_the_service_ends_that_conversation_alone(
    collector: MemoryCollector, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """With a sentence that gives nothing away, and the traceback in the log."""

    def fail(parcel: Parcel) -> None:
        raise ZeroDivisionError("inner matters")

    other = opened(collector, Hello("run", "other"))
    session = opened(collector)
    collector.on_parcel = fail
    session.send(Parcel(0, [item(10)]))
    trouble = failure(session)
    assert "a fault in the collector" in str(trouble)
    assert "inner" not in str(trouble)
    assert "inner matters" in caplog.text
    collector.on_parcel = None
    other.send(Parcel(0, [item(10)]))
    answers(other, is_acked(other))


def test_a_port_that_is_taken_is_an_error() -> None:
    """A second collector on it is told so."""
    with MemoryCollector() as first:
        second = Server(first)
        with pytest.raises(OSError, match="cannot listen"):
            second.listen(Address("127.0.0.1", first.address.port))
        second.stop(0)


def test_every_conversation_is_closed_once(collector: MemoryCollector, opened: Open) -> None:
    """However it ended; and nothing is under way then."""
    collector.acks = False
    for number in range(3):
        session = opened(collector, Hello("run", str(number)))
        session.send(Parcel(0, [item(10)]))
        wait_until(lambda: collector.parcels == len(collector.talks), WAIT_S, "it is taken")
        session.close()
    wait_until(lambda: all(talk.why for talk in collector.talks), WAIT_S, "all are closed")
    wait_until(lambda: not collector.server.conversations, WAIT_S, "all are gone")
    assert collector.server.bytes_under_way == 0
