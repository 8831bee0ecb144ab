"""A collector as the wire sees it: a `Service` in plain Python, without gRPC or protobuf; and how much it may take.

Does not: know a store or a token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from .batch import MAX_BYTES
from .blobs import Piece
from .messages import Description, Hello, NotTaken, Parcel, Welcome
from .node_report import NodeReport
from .outbound import Replies


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: the token it sent (empty: none) and where from. Nothing is checked yet."""

    token: str = field(repr=False)
    peer: str
    is_loopback: bool


class Conversation(Protocol):
    """One node's conversation as the service handles it. All calls come from one thread."""

    @property
    def welcome(self) -> Welcome:
        """Asked once, at the start."""

    def take(self, parcel: Parcel) -> None:
        """The next parcel. It is under way until `Replies.ack` or a final `Replies.refuse` names it.

        May wait, which makes the client wait. Raises `NotTaken` as `Replies.refuse` takes it; `Corrupt` counts as
        INVALID and final for this parcel.
        """

    def keepalive(self) -> None:
        """The client is there and has nothing to send."""

    def report(self, report: NodeReport) -> None:
        """The observer of the node saw something new. Never waits."""

    def closed(self, why: str) -> None:
        """The last call; `why` in words. Replies go nowhere from now on."""


class BlobService(Protocol):
    """Takes the blobs of media values. Calls come from a few threads, and may take as long as a disk does."""

    def lacking(self, run: str, node: str, asked: list[str]) -> list[str]:
        """Return which of these hashes the run lacks; the others are its own from now on. `NotTaken`."""

    def take(self, run: str, node: str, piece: Piece) -> tuple[int, bool]:
        """Take one piece; returns how many bytes of its blob are there, and whether it is complete. `NotTaken`."""


class Service(Protocol):
    """A collector as the wire sees it. Calls come from many threads at once."""

    def admit(self, token: str) -> str:
        """Whose token it is, by a name for counting; `NotTaken` where it may not ship. Never waits."""

    def refused(self, caller: Caller, why: NotTaken) -> None:
        """A call was refused at the gate: for counts and the log."""

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Conversation:
        """Begin. `NotTaken` where it shall not be: the conversation ends with that."""

    def describe(self, caller: Caller) -> Description:
        """Also for those who may do nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that are taken at once."""

    conversations: int = 256
    waiting: int = 64  # nodes that wait for their turn, where there are more than conversations
    greeting: int = 64  # conversations that have not sent their hello yet; of one token half as many
    turn_s: float = 8.0  # a node waits so long for its turn, then it is refused for now
    most_bytes: int = 64 << 20  # of parcels under way, of all conversations together
    most_parcel_bytes: int = 16 << 20
    most_unpacked_bytes: int = MAX_BYTES  # of one parcel, decoded
    most_unpacking_bytes: int = 2 * MAX_BYTES  # of all that are decoded and that no service has taken yet
    hello_s: float = 10.0  # a client sends its hello within that
    silence_s: float = 90.0  # and something at least that often
    room_s: float = 10.0  # a parcel waits so long for room at most, then its client is refused for now
    retry_after_s: float = 5.0
