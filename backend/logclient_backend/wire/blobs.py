"""Blobs of media values on the wire: both sides, apart from conversations.

`Uploads` is the client's, in one thread; `answer` the server's, in a few threads of the gate.

Invariants:

- a piece is bounded, and so is what is asked at a time; each call has a deadline;
- where an upload goes on the collector says, so an interrupted one costs what was under way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from logclient_proto.v1 import ingest_pb2 as pb

from . import channel, convert, messages
from .credentials import Access
from .messages import NotTaken

if TYPE_CHECKING:
    from .service import BlobService

PIECE_BYTES = 1 << 20
MAX_ASKED = 1000
MAX_BYTES = 4 << 30  # of one blob
_CALL_S = 60.0
_HASH_BYTES = 32


class Piece(NamedTuple):
    """Some bytes of a blob."""

    sha256: str
    size: int  # of the whole blob
    offset: int
    data: bytes


class Uploads:
    """One node's uploads to one collector. Raises `NotTaken`; after that it is to be closed, and another one made."""

    def __init__(self, access: Access, run: str, node: str) -> None:
        self._access = access
        self._run, self._node = run, node
        self._channel = channel.open_channel(access)
        self._call = self._channel.unary_unary(
            "/logclient.v1.Ingest/Blob",
            request_serializer=pb.BlobRequest.SerializeToString,
            response_deserializer=pb.BlobReply.FromString,
        )

    def lacking(self, asked: list[str]) -> list[str]:
        """Return which of these the collector lacks."""
        request = pb.BlobRequest(run=self._run, node=self._node, asked=map(bytes.fromhex, asked))
        wanted = set(asked)
        return [each.hex() for each in self._ask(request).lacking if each.hex() in wanted]

    def put(self, piece: Piece) -> tuple[int, bool]:
        """Send one piece; returns where the next one belongs, and whether the blob is complete."""
        request = pb.BlobRequest(run=self._run, node=self._node)
        request.piece.sha256 = bytes.fromhex(piece.sha256)
        request.piece.size, request.piece.offset, request.piece.data = piece.size, piece.offset, piece.data
        reply = self._ask(request)
        return min(reply.have, piece.size), reply.is_complete

    def _ask(self, request: pb.BlobRequest) -> pb.BlobReply:
        try:
            reply = self._call(request, timeout=_CALL_S, metadata=channel.metadata(self._access))
        except grpc.RpcError as error:
            raise channel.trouble(error, self._access.address) from None
        assert isinstance(reply, pb.BlobReply)
        if reply.HasField("refusal"):
            raise convert.read_refusal(reply.refusal)
        return reply

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def answer(request: bytes, service: BlobService) -> bytes:
    """Answer one call; what is wrong with it becomes a refusal."""
    reply = pb.BlobReply()
    try:
        asked = pb.BlobRequest.FromString(request)
        if asked.HasField("piece"):
            piece = _checked(asked.piece)
            reply.have, reply.is_complete = service.take(asked.run, asked.node, piece)
        else:
            hashes = [each.hex() for each in asked.asked]
            if len(hashes) > MAX_ASKED or not all(len(each) == 2 * _HASH_BYTES for each in hashes):
                raise NotTaken("a question for blobs is malformed", messages.INVALID, is_final=True)
            reply.lacking.extend(map(bytes.fromhex, service.lacking(asked.run, asked.node, hashes)))
    except DecodeError:
        why = NotTaken("a piece of a blob is no message of this protocol", messages.INVALID, is_final=True)
        reply.refusal.CopyFrom(convert.refusal(why).refusal)
    except NotTaken as refused:
        reply = pb.BlobReply()
        reply.refusal.CopyFrom(convert.refusal(refused).refusal)
    return bytes(reply.SerializeToString())


def _checked(piece: pb.BlobPiece) -> Piece:
    found = Piece(piece.sha256.hex(), piece.size, piece.offset, piece.data)
    is_good = len(piece.sha256) == _HASH_BYTES and len(found.data) <= PIECE_BYTES
    if not is_good or found.size > MAX_BYTES or found.offset + len(found.data) > found.size:
        raise NotTaken("a piece of a blob is malformed", messages.INVALID, is_final=True)
    return found


def is_hash(text: str) -> bool:
    """Is it a SHA-256 in hex?"""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None
