"""The gate of the gRPC server: a call without a token that may ship is refused before a byte of it is read.

`Gate` is the server's only handler of calls. grpc asks it with the method and the metadata, in its serving thread and
before it receives a message. A refused call is answered by a few threads of its own, with a status and no message: so
it takes no thread of those who may ship, and its client can hold up nothing by not reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from . import convert, messages
from .channel import REFUSAL
from .messages import NotTaken

SHIP, DESCRIBE = "/logclient.v1.Ingest/Ship", "/logclient.v1.Control/Describe"
BLOB = "/logclient.v1.Ingest/Blob"
STATUS = {
    messages.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    messages.WRONG_PROTOCOL: grpc.StatusCode.INVALID_ARGUMENT,
    messages.DELETED: grpc.StatusCode.FAILED_PRECONDITION,
    messages.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    messages.DISK: grpc.StatusCode.RESOURCE_EXHAUSTED,
    messages.STOPPING: grpc.StatusCode.UNAVAILABLE,
    messages.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
}
_DOORMEN = 4  # threads
_PORTERS = 4  # threads, each of which may wait for a disk with a piece of a blob in hand

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler

Blob = Callable[[str, bytes, grpc.ServicerContext], bytes]
Ship = Callable[[str, Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]


class Gate(_Handler):
    """Admits calls."""

    def __init__(
        self,
        admit: Callable[[str], str],
        ship: Ship,
        describe: Callable[[grpc.ServicerContext], bytes],
        refused: Callable[[NotTaken, grpc.ServicerContext], None],
        blob: Blob | None = None,
    ) -> None:
        """`admit` gets a token and returns whose it is, or raises `NotTaken`; it never waits.

        `blob` answers calls for blobs; without it there are none.
        """
        self._admit = admit
        self._ship = ship
        self._describe = describe
        self._refused = refused
        self._blob = blob
        self._doormen = futures.ThreadPoolExecutor(_DOORMEN, thread_name_prefix="doorman")
        self._porters = futures.ThreadPoolExecutor(_PORTERS, thread_name_prefix="blobs")

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the function that answers this call. No request is received before the function asks for it."""
        if handler_call_details.method == SHIP:
            try:
                who = self._admit(token_in(handler_call_details.invocation_metadata))
            except NotTaken as refused:
                return grpc.stream_stream_rpc_method_handler(self._apart(partial(self._refuse, refused)))
            return grpc.stream_stream_rpc_method_handler(partial(self._ship, who))
        if handler_call_details.method == BLOB:
            if self._blob is None:
                return None
            try:
                who = self._admit(token_in(handler_call_details.invocation_metadata))
            except NotTaken as refused:
                return grpc.stream_stream_rpc_method_handler(self._apart(partial(self._refuse, refused)))
            return grpc.unary_unary_rpc_method_handler(self._apart(partial(self._blob, who), self._porters))
        if handler_call_details.method == DESCRIBE:
            # the request is empty, and whatever else somebody sends is not received
            return grpc.stream_unary_rpc_method_handler(
                self._apart(lambda requests, context: self._describe(context))
            )
        return None

    def close(self) -> None:
        self._doormen.shutdown(wait=False)
        self._porters.shutdown(wait=False)

    def _apart(
        self, function: Callable[..., Any], pool: futures.ThreadPoolExecutor | None = None
    ) -> Callable[..., Any]:
        """Run it in a thread of that pool; without one, of the doormen."""
        apart: Any = partial(function)
        apart.experimental_thread_pool = pool or self._doormen
        return apart  # type: ignore[no-any-return]

    def _refuse(
        self, why: NotTaken, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        refuse(why, context)
        self._refused(why, context)
        return iter(())


def refuse(why: NotTaken, context: grpc.ServicerContext) -> None:
    """In the status and beside it, without a message."""
    refusal = convert.refusal(why).refusal
    context.set_code(STATUS.get(why.reason, grpc.StatusCode.UNKNOWN))
    context.set_details(refusal.text)
    context.set_trailing_metadata(((REFUSAL, refusal.SerializeToString()),))


def token_in(metadata: Any) -> str:
    """The bearer token of a call; empty where it has none."""
    token = ""
    for name, value in metadata or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            token = value[7:].strip()
    return token
