"""Messages of both sides of a conversation, as plain Python: no generated code, no grpc.

For whoever is above the wire: the shipper (`client.py` sends and receives these) and the collector (`server.py`).
Reading and writing them as protobuf is `batch.py` and `convert.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logclient.errors import LogclientError

from ..wal.encoded import StreamColumns
from ..wal.scan import Gap
from ..wal.seqs import SeqSet

PROTOCOL = 2  # the one that this program speaks

# Why something was not taken. The first nine are the reasons of the protocol.
UNKNOWN, INVALID, DELETED, BUSY, DISK, STOPPING, UNAUTHORIZED, WRONG_PROTOCOL, OUTDATED = (
    *("unknown", "invalid", "deleted", "busy"),
    *("disk", "stopping", "unauthorized", "protocol", "outdated"),
)
UNREACHABLE = "unreachable"  # nobody there speaks this protocol: no answer, a reset, garbage, silence


class NotTaken(LogclientError):
    """The collector did not store it; the sentence states why and what to do.

    A collector's service raises it to refuse, and a client gets it for every kind of trouble, also where no
    collector answers. `is_final`: asking again will not help. `parcel`: the number of the only parcel that is meant.
    """

    def __init__(
        self,
        text: str,
        reason: str = UNKNOWN,
        *,
        is_final: bool = False,
        retry_after_s: float | None = None,
        parcel: int = 0,
    ) -> None:
        super().__init__(text)
        self.text = text
        self.reason = reason
        self.is_final = is_final
        self.retry_after_s = retry_after_s  # not before; None: as the client likes
        self.parcel = parcel


def digest(documents: bytes) -> bytes:
    """By which a client knows that its documents are there already; of none: empty."""
    return hashlib.blake2b(documents, digest_size=16).digest() if documents else b""


@dataclass(frozen=True, slots=True)
class Hello:
    """The sender of a conversation, and the node that it ships."""

    run: str
    node: str
    client: str = ""  # program and version
    revive: bool = False  # take the run back if it was deleted
    is_sync: bool = False  # an upload after the fact
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class HeldStream:
    """Coverage of one stream: committed seqs, and those known to be gone, by cause."""

    stored: SeqSet = field(default_factory=SeqSet)
    gaps: Mapping[str, SeqSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The collector's coverage, and how much it takes at once."""

    collector: str
    window_bytes: int = 8 << 20
    most_parcel_bytes: int = 16 << 20
    held: Mapping[bytes, HeldStream] = field(default_factory=dict)
    documents_digest: bytes = b""  # see `digest`; empty: none are there
    documents_revision: int = 0  # of those that are there; 0: none is known
    protocol: int = PROTOCOL
    takes_edits: bool = False  # an earlier collector does not
    edits_digest: bytes = b""  # of the edits of the run that are there, see `runs/edits.py`
    public_url: str = ""  # of its page, as an administrator named it; empty: nobody did
    http_address: str = ""  # as in `Description`


@dataclass(slots=True)
class Parcel:
    """Records and documents that are committed together.

    `number` counts from 1 in the order of sending; `size_bytes` is the size as it was sent.
    """

    number: int
    batches: Sequence[StreamColumns] = ()
    holes: Sequence[Gap] = ()
    documents: bytes | None = None  # the node's, whole: JSON as the agent writes it
    size_bytes: int = 0
    edits: bytes | None = None  # of the run, as `runs/edits.py` writes them
    unpacked_bytes: int = 0  # about what it takes in memory, as a collector counts it

    @property
    def records(self) -> int:
        return sum(map(len, self.batches))

    @property
    def points(self) -> int:
        return sum(len(item) * len(item.shape.names) for item in self.batches)


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody asks the run to stop or to save; fields as in `logclient/shm/stop_requests.py`."""

    id: str
    kind: str
    save: bool = False
    reason: str = ""
    by: str = ""
    time_ns: int = 0
    step: int | None = None  # after which it comes true, on all nodes; None: at once


@dataclass(frozen=True, slots=True)
class Description:
    """A collector's description of itself."""

    collector: str
    version: str
    most_parcel_bytes: int
    http_address: str = ""  # host:port, or :port on the same host; empty: it has none
    role: str = ""  # what the caller may do: ingest, read, edit, control, admin; empty: nothing
    protocol: int = PROTOCOL
    public_url: str = ""  # as in `Welcome`


@dataclass(frozen=True, slots=True)
class Ack:
    """All parcels up to this number are committed, or were refused."""

    upto: int
