"""A parcel from a client with a token, with one field at its extremes: stored and readable, or refused for good.

The whole collector over a real connection. Whatever becomes of that parcel, what lies before and behind it is stored,
every question of the HTTP API has an answer, and the collector's log shows no fault.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.serve import Collector, Settings
from logclient_backend.wal.encoded import StreamColumns, pack, unpack
from logclient_backend.wire.address import Address
from logclient_backend.wire.batch import BatchWriter
from logclient_proto.v1 import ingest_pb2 as pb
from tests.process.disturbed import wait_until

pytestmark = pytest.mark.timeout(600)

DEADLINE_S = 60.0
SHIP = "/logclient.v1.Ingest/Ship"
MOST = (1 << 64) - 1
Change = Callable[[pb.Parcel], None]


class Running:
    """A collector, its log, and a name for each run."""

    def __init__(self, folder: Path) -> None:
        free = Address("127.0.0.1", 0)
        self.log = io.StringIO()
        settings = Settings(folders.make(str(folder)), free, free, "0", no_auth=True, durable=False)
        self.collector = Collector(settings, EventLog(self.log))
        self.channel = grpc.insecure_channel(self.collector.address.target, [("grpc.enable_http_proxy", 0)])
        self.web = requests.Session()
        self.web.trust_env = False
        self._names = (f"run{number}" for number in itertools.count())

    def name(self) -> str:
        return next(self._names)

    def get(self, path: str, **parameters: Any) -> requests.Response:
        return self.web.get(f"{self.collector.port.url}/api/v1{path}", params=parameters, timeout=DEADLINE_S)

    def close(self) -> None:
        self.web.close()
        self.channel.close()
        assert self.collector.stop(DEADLINE_S)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("collector") / "data")
    yield made
    made.close()


def batch(
    first: int, names: tuple[str, ...] = ("a", "b", "note", "large"), codes: str = "dqsi"
) -> pb.RecordBatch:
    """Two records of one stream."""
    return message_of(records(first, names, codes))


def records(first: int, names: tuple[str, ...] = ("a", "b", "note", "large"), codes: str = "dqsi") -> Columns:
    seq = array("Q", (first, first + 1))
    number = array("q", seq)
    cells: list[Any] = [array("Q", (first, 5)), array("Q", (1, 2)), [b"x", b"y"], [b"\1" * 9, b"\2" * 9]]
    return Columns(Shape(names, codes), None, seq, seq, number[:], number[:], cells[: len(names)])


def message_of(columns: Columns) -> pb.RecordBatch:
    return BatchWriter(packs=False).batch(StreamColumns(b"s" * 16, b"p" * 16, 0, columns))


def good(number: int, first: int) -> pb.Parcel:
    return pb.Parcel(number=number, batches=[batch(first)])


def ship(running: Running, run: str, *parcels: pb.Parcel) -> tuple[int, list[pb.Refusal]]:
    """(acknowledged up to, refusals); parcels behind a conversation that has ended are sent in the next one."""
    sent = [pb.ShipRequest(parcel=each).SerializeToString() for each in parcels]
    hello = pb.ShipRequest(hello=pb.Hello(protocol=2, run=run, node="n", client="test")).SerializeToString()
    call: Any = running.channel.stream_stream(SHIP, request_serializer=None, response_deserializer=None)
    replies = call(iter([hello, *sent]), timeout=DEADLINE_S)
    acked, refusals = 0, []
    try:
        for data in replies:
            reply = pb.ShipReply.FromString(data)
            if reply.WhichOneof("what") == "ack":
                acked = reply.ack.upto
            elif reply.WhichOneof("what") == "refusal":
                refusals.append(reply.refusal)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    return acked, refusals


def changed(change: Change) -> pb.Parcel:
    made = good(2, 10)
    change(made)
    return made


def check(running: Running, change: Change) -> list[pb.Refusal]:
    """The changed parcel between two good ones, and all that can be asked afterwards; refusals of that parcel."""
    run = running.name()
    before, behind = good(1, 1), good(3, 1000)
    acked, refusals = ship(running, run, before, changed(change))
    for each in refusals:
        assert each.reason == pb.REASON_INVALID, each
        assert each.is_final or each.parcel == 0, (
            each
        )  # or the conversation ends, and the client goes on behind it
    about = [each for each in refusals if each.parcel == 2]
    assert acked == 2 and len(about) <= 1, (acked, refusals)
    behind.number = 1
    assert ship(running, run, behind)[0] == 1
    ask_everything(running, run)
    assert "fault" not in running.log.getvalue(), running.log.getvalue()
    return about


def ask_everything(running: Running, run: str) -> None:
    """Each question has an answer, and what was sent with good parcels is among it."""
    wait_until(lambda: not running.collector.store.compact(deadline_s=1.0), DEADLINE_S, "all is compacted")
    for path in (
        "/run",
        "/run/config",
        "/run/summary",
        "/run/documents",
        "/run/contents",
        "/run/last",
    ):
        answer = running.get(path, run=run)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
    export = running.get("/run/export", run=run)
    assert export.status_code == 200 and export.content
    listed = running.get("/run/keys", run=run)
    assert listed.status_code == 200, listed.text[:500]
    for name in [each["key"] for each in listed.json()["keys"]]:
        for path, more in (("/run/series", {}), ("/run/buckets", {"most": 10})):
            answer = running.get(path, run=run, key=name, **more)
            assert answer.status_code in (200, 400), (name, answer.text[:500])
            if answer.status_code == 400:
                assert json.loads(answer.text)["error"] == "no_numbers", answer.text
    points = running.get("/run/series", run=run, key="a").text
    assert points.count("1001") >= 1, points[:500]


def seq_from(first: int, stride: int = 1) -> Change:
    def change(parcel: pb.Parcel) -> None:
        columns = records(10)
        columns.seq = array("Q", (first, first + stride & MOST))
        parcel.batches[0].bodies = message_of(columns).bodies

    return change


def hole(first: int, last: int, cause: int = 0) -> Change:
    def change(parcel: pb.Parcel) -> None:
        made = parcel.holes.add(stream=b"s" * 16, process=b"p" * 16)
        made.hole.cause = cause  # type: ignore[assignment]
        made.hole.range.first, made.hole.range.last = first, last

    return change


def table(names: tuple[str, ...], codes: str = "dqsi") -> Change:
    def change(parcel: pb.Parcel) -> None:
        parcel.batches[0].CopyFrom(batch(10, names, codes))

    return change


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (table(("a", "a", "note", "large")), "each key once"),
        (table(("a\0b", "b", "note", "large")), "without NUL"),
        (table(("", "b", "note", "large")), "1 to 512 bytes"),
        (table(("x" * 513, "b", "note", "large")), "1 to 512 bytes"),
        (seq_from(1 << 63), "to 2\\*\\*63"),
        (seq_from((1 << 63) - 1), "to 2\\*\\*63"),
        (seq_from(MOST - 1), "to 2\\*\\*63"),
        (seq_from(0), "from 1 to"),
        (hole(20, MOST), "to 2\\*\\*63"),
        (hole(1 << 63, (1 << 63) + 5), "to 2\\*\\*63"),
        (hole(0, 5), "from 1 to"),
    ],
)
def test_what_cannot_be_stored_is_refused_for_good(running: Running, change: Change, words: str) -> None:
    """With one sentence; what lies before and behind it is stored."""
    (refusal,) = check(running, change)
    assert refusal.is_final
    assert re.search(words, refusal.text), refusal.text


@pytest.mark.parametrize("last", [(1 << 62), (1 << 63) - 2])
def test_gap_that_can_be_is_stored(running: Running, last: int) -> None:
    """Of any size below."""
    assert check(running, hole(5000, last)) == []


u64 = st.sampled_from((0, 1, 2, (1 << 31) - 1, 1 << 31, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, MOST))
s64 = st.sampled_from((0, 1, -1, 1 << 31, -(1 << 53), (1 << 63) - 1, -(1 << 63), -(1 << 63) + 1))
u32 = st.sampled_from((0, 1, 65535, 65536, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, (1 << 32) - 1))
names = st.sampled_from(
    (
        "a",
        "b",
        "",
        "\0",
        "\x01",
        "\x7f",
        "\ud7ff",
        "::",
        "a::",
        "::a",
        "~",
        "é" * 256,
        "é" * 257,
        "\n",
        "=1",
        "/",
        "..",
    )
)
numbers = s64 | st.floats() | u64 | st.just(10**400)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.just("\0") | st.just("\\ud800")
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "version",
    "node",
    "run",
    "run_id",
    "processes",
    "streams",
    "closed",
    "heard_ns",
    "documents",
    "end",
    "at_ns",
)
jsons = st.dictionaries(
    st.sampled_from(FIELDS), trees | st.dictionaries(st.sampled_from(FIELDS), trees, max_size=3)
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """One field of a good parcel, at its extremes."""
    which = draw(st.sampled_from(("seq", "order", "step", "time")))
    values = draw(st.tuples(s64, s64))
    how = draw(
        st.sampled_from(
            (
                "column",
                "lane",
                "rank",
                "keys",
                "records",
                "id",
                "names",
                "words",
                "texts",
                "head",
                "hole",
                "json",
            )
        )
    )
    number, small, other = draw(u64), draw(u32), draw(u64)
    id = draw(st.sampled_from((b"", b"s" * 15, b"s" * 17, b"\0" * 16, b"\xff" * 16)))
    four = tuple(draw(st.lists(names, min_size=4, max_size=4)))
    raw = draw(st.sampled_from((b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\0", b"x" * 70_000)))
    word = draw(
        st.binary(min_size=32, max_size=32) | st.sampled_from((b"\xff" * 32, b"\0" * 32, b"\x7f" * 32))
    )
    document = draw(jsons)

    def change(parcel: pb.Parcel) -> None:
        made = parcel.batches[0]
        if how == "column":
            columns = records(10)
            words = array("q", values)
            if which in ("seq", "order"):
                words = array(
                    "Q", sorted(array("Q", words.tobytes()))
                )  # a body's last seq is not below its first
            setattr(columns, which, words)
            made.bodies = message_of(columns).bodies
        elif how in ("lane", "rank", "keys", "records"):
            setattr(made, how, small)
        elif how == "id":
            made.stream = id
        elif how == "names":
            made.CopyFrom(batch(10, four))
        elif how == "words":
            columns = records(10)
            columns.cells[:2] = array("Q", word[:16]), array("Q", word[16:])
            made.bodies = message_of(columns).bodies
        elif how == "texts":
            columns = records(10)
            columns.cells[2:] = [raw, raw], [raw, raw]
            changed = message_of(columns)
            made.bodies, made.text_bytes = changed.bodies, changed.text_bytes
        elif how == "head":
            (body,) = unpack(made.bodies)
            seqs: Any = {"first_seq": number, "last_seq": number + 1}
            made.bodies = pack([body._replace(**seqs, first_step=values[0], base_ns=values[1])])
        elif how == "hole":
            hole(number, other, small % 5)(parcel)
        else:
            text = json.dumps(document).encode()
            parcel.documents.json.CopyFrom(pb.Packed(size=len(text), data=text))

    return change


@pytest.mark.slow
@settings(max_examples=max(8, settings().max_examples // 10))  # each asks a dozen questions
@given(change=changes())
@example(change=hole(1, 1, 4))
def test_every_field_at_its_extremes(running: Running, change: Change) -> None:
    """Stored and readable, or refused for good; never an unknown error, and never a fault."""
    check(running, change)
