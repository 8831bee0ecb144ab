"""A connection to a collector, and what grpc's errors mean in words.

A channel is made for one conversation and closed with it, so that a broken connection leaves nothing behind: neither
grpc's own pauses nor an address that is out of date.

Invariants:

- nothing goes through a proxy to this machine itself; to others as the environment names one (`grpc_proxy`,
  `https_proxy`, `http_proxy`, less what `no_grpc_proxy` or `no_proxy` name);
- every error becomes one short line that has neither a token nor a proxy's password in it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import _common  # no public name: see `sleep_long`

from logclient import config as settings
from logclient_proto.v1 import ingest_pb2 as pb

from . import convert, messages
from .address import Address
from .credentials import Access
from .messages import NotTaken
from .sanitize import one_line

MAX_MESSAGE_BYTES = 64 << 20  # of what a collector may send: a welcome that lists very many ranges

REFUSAL = "logclient-refusal-bin"  # trailing metadata of a call that was refused at the gate: a `Refusal`

_WAIT_S = 3600.0
_UNAUTHORIZED_S = 60.0
_USER = re.compile(r"//[^/@\s]*@")
_FOR_NOW = ("408", "425", "429")
_HTTP_STATUS = re.compile(r"status: ?([1-5][0-9]{2})\b")
_NOISE = re.compile(r"^(failed to connect to all addresses; )?(last error: )?([A-Z]+: )?")
_STATUS_NAMES = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.CANCELLED: "the connection was closed",
}
_UNKNOWN_SIGNER = "nobody whom this machine trusts signed its certificate; set ca in the config file"
# What grpc's words mean for who set this up. Where a sign is not found, the words themselves are shown.
_HINTS = (
    ("certificate has expired", "its certificate has expired; the collector needs a new one"),
    ("certificate is not yet valid", "its certificate is not valid yet; is the clock of one machine wrong?"),
    ("local issuer certificate", _UNKNOWN_SIGNER),
    ("self-signed certificate", _UNKNOWN_SIGNER),
    ("self signed certificate", _UNKNOWN_SIGNER),
    ("Hostname Verification", "its certificate is for another name; use the name that is in it"),
    ("CERTIFICATE_VERIFY_FAILED: ", ""),  # the words behind it are OpenSSL's reason
    ("WRONG_VERSION_NUMBER", "what answers there does not speak TLS; is it grpc:// rather than grpcs://?"),
    (
        "Failed parsing HTTP/2",
        "what answers there is no collector, but a web server or the login page of a network, say",
    ),
    ("Socket closed", "the connection was closed; if it wants TLS, write grpcs:// rather than grpc://"),
    ("Connection refused", "connection refused: nothing listens there"),
    ("Domain name not found", "there is no host of that name, as far as this machine knows"),
    ("errors resolving", "its name cannot be looked up; is it right, and is there a network?"),
    ("HTTP proxy returned response code 407", "the proxy wants another login (407)"),
)


def open_channel(access: Access) -> grpc.Channel:
    """Does not connect yet."""
    address = access.address
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 1 << 14),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),  # or a pause after a failure outlives the channel
        ("grpc.enable_retries", 0),  # we know what was acknowledged
        ("grpc.enable_http_proxy", 0 if address.is_loopback else 1),
        ("grpc.primary_user_agent", "logclient"),
    ]
    if address.is_tls:
        return grpc.secure_channel(
            address.target, grpc.ssl_channel_credentials(root_certificates=access.ca), options
        )
    return grpc.insecure_channel(address.target, options)


def metadata(access: Access) -> tuple[tuple[str, str], ...]:
    """Return the metadata of each call."""
    return (("authorization", f"Bearer {access.token}"),) if access.token else ()


def trouble(error: grpc.RpcError, address: Address) -> NotTaken:
    """Return the meaning of a failed call."""
    refusal = _refusal(error)
    if refusal is not None:
        return refusal
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    reported = one_line(_USER.sub("//...@", (details or "")[:10_000]), 250)
    where = f"{address}{through(address)}"
    answered = _HTTP_STATUS.search(reported)
    if answered is not None and answered[1] != "200":
        # no collector answers with one; a proxy in between does, while it starts or its target is away
        is_for_now = answered[1] in _FOR_NOW or answered[1] >= "500"
        return NotTaken(
            f"what answers at {where} is no logclient collector, or a proxy in front of one (HTTP status "
            f"{answered[1]}); check the address and the port",
            messages.UNREACHABLE if is_for_now else messages.WRONG_PROTOCOL,
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return NotTaken(
            f"{where} does not let us write: {reported or 'no reason given'}; check LOGCLIENT_TOKEN or the config file",
            messages.UNAUTHORIZED,
            retry_after_s=_UNAUTHORIZED_S,
        )
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return NotTaken(
            f"what answers at {where} is no logclient collector; check the address and the port",
            messages.WRONG_PROTOCOL,
        )
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return NotTaken(f"{where} takes no more now: {reported or 'no reason given'}", messages.BUSY)
    reason = _STATUS_NAMES.get(code) or _NOISE.sub("", reported) or code.name.lower()
    if "Socket closed" in reason and address.is_tls:
        return NotTaken(f"{where} cannot be reached: the connection was closed", messages.UNREACHABLE)
    hint = next((hint or _refused_for(reason, sign) for sign, hint in _HINTS if sign in reason), "")
    return NotTaken(f"{where} cannot be reached: {hint or reason}", messages.UNREACHABLE)


def _refused_for(reason: str, sign: str) -> str:
    """OpenSSL's own reason, where we have no better words."""
    return f"its certificate is refused: {reason.partition(sign)[2].removesuffix(': OK')}"


def _refusal(error: grpc.RpcError) -> NotTaken | None:
    """Return the collector's sentence beside the status of a call that it refused; None where it sent none."""
    given: Any = (error.trailing_metadata() if isinstance(error, grpc.Call) else None) or ()
    data = next((value for name, value in given if name == REFUSAL and isinstance(value, bytes)), None)
    if data is None:
        return None
    try:
        return convert.read_refusal(pb.Refusal.FromString(data))
    except DecodeError:
        return None


def proxy_of(address: Address) -> str:
    """host:port of the proxy that leads there, without user and password; empty: none."""
    if address.is_loopback:
        return ""
    variables = settings.environment()
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        value = variables.get(name)  # set to nothing it means: none, whatever the others are
        if value is not None:
            break
    else:
        return ""
    if _is_exempt(address.host, variables.get("no_grpc_proxy") or variables.get("no_proxy", "")):
        return ""
    return one_line(value.rpartition("://")[2].rpartition("@")[2].partition("/")[0], 100)


def _is_exempt(host: str, names: str) -> bool:
    for name in (part.strip() for part in names.split(",")):
        if name and (host.endswith(name) or _is_within(host, name)):
            return True
    return False


def _is_within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def through(address: Address) -> str:
    proxy = proxy_of(address)
    return f" (through the proxy {proxy})" if proxy else ""


def sleep_long() -> None:
    """Let a thread that waits for an answer sleep until it comes.

    grpc wakes it ten times a second, so that a signal's handler may run, which matters in a main thread only. For a
    process that waits in other threads; a grpc that does it otherwise goes on as it does.
    """
    if hasattr(_common, "MAXIMUM_WAIT_TIMEOUT"):
        _common.MAXIMUM_WAIT_TIMEOUT = _WAIT_S
