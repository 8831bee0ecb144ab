"""The certificate of a collector and its key: read, checked against each other, and what is wrong in words.

`read` raises where TLS cannot work at all: no such file, not readable, no PEM, the key of another certificate.
`Certificate.troubles` returns sentences about what makes clients refuse it: expired, not valid yet, another name.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from logclient.errors import BadArgument
from logclient.shm.regular import read_regular

from ..wire.server import ServerTls
from .store.interface import StoreError

SOON_S = 14 * 86400.0
_MAX_BYTES = 1 << 20
_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
_OTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_FOREIGN = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, which belong together."""

    tls: ServerTls
    files: tuple[str, str]
    names: tuple[str, ...] = ()  # by which clients reach the collector, as far as that is known
    ends_s: float = 0.0  # Unix time; 0: not known, since it is not valid
    _wrong: tuple[str, ...] = field(default=())

    def troubles(self) -> list[str]:
        """Sentences; none stops a collector."""
        left_s = self.ends_s - time.time()
        found = list(self._wrong)
        if self.ends_s and left_s < 0:
            found.append(_expired(self.files[0]))
        elif self.ends_s and left_s < SOON_S:
            found.append(
                f"the TLS certificate {self.files[0]} expires in {left_s / 86400:.0f} days: put a new one there and "
                f"restart the collector"
            )
        return found


def read(files: tuple[str, str], names: Iterable[str] = ()) -> Certificate:
    """`StoreError` or `BadArgument` state why it cannot be used."""
    certificate, key = files
    data = _read("certificate", certificate), _read("key", key)
    if b"-----BEGIN CERTIFICATE-----" not in data[0]:
        swapped = ": are --tls-cert and --tls-key swapped?" if b"PRIVATE KEY-----" in data[0] else ""
        raise BadArgument(f"{certificate} holds no certificate in PEM form{swapped}")
    if b"PRIVATE KEY-----" not in data[1]:
        raise BadArgument(f"{key} holds no private key in PEM form")
    if b"BEGIN ENCRYPTED PRIVATE KEY" in data[1] or b"Proc-Type: 4,ENCRYPTED" in data[1]:
        raise BadArgument(
            f"the TLS key {key} has a pass phrase, which nobody could type in: write it without one, readable by the "
            f"collector's user alone"
        )
    server = _server(certificate, key)
    leaf = data[0].decode("ascii", "replace")
    wrong, ends_s = _validity(server, leaf, certificate)
    names = tuple(names)
    if not wrong:
        wrong = [
            f"the TLS certificate {certificate} is not for the name {name}: clients that use it refuse the connection"
            for name in names
            if _verify(server, leaf, name)[0] in _OTHER_NAME
        ]
    return Certificate(ServerTls(*data), files, names, ends_s, tuple(wrong))


def _read(what: str, path: str) -> bytes:
    try:
        return read_regular(os.path.realpath(path), max_bytes=_MAX_BYTES)  # links are how systems keep them
    except FileNotFoundError:
        raise StoreError(f"the TLS {what} {path}: there is no such file") from None
    except PermissionError:
        raise StoreError(
            f"the TLS {what} {path} cannot be read by this user: give it to the user who runs the collector"
        ) from None
    except OSError as error:
        raise StoreError(f"the TLS {what} {path} cannot be read: {error.strerror}") from error


def _server(certificate: str, key: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        made.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason in _FOREIGN:
            raise BadArgument(
                f"the TLS key {key} belongs to another certificate than the first one in {certificate}, which has to "
                f"be the collector's own"
            ) from None
        raise BadArgument(
            f"the TLS certificate {certificate} with the key {key} cannot be used: {error.reason or error}"
        ) from None
    return made


def _validity(server: ssl.SSLContext, leaf: str, path: str) -> tuple[list[str], float]:
    """(what is wrong with its time, when it ends)."""
    code, ends_s = _verify(server, leaf)
    if code == _EXPIRED:
        return [_expired(path)], 0.0
    if code == _NOT_YET:
        return [
            f"the TLS certificate {path} is not valid yet: is the clock of this machine right? Clients refuse it"
        ], 0.0
    return [], ends_s


def _expired(path: str) -> str:
    return f"the TLS certificate {path} has expired, and clients refuse it: put a new one there and restart"


def _verify(server: ssl.SSLContext, leaf: str, name: str = "") -> tuple[int, float]:
    """(OpenSSL's reason to refuse it, 0 for none; when it ends): by a handshake with ourselves that trusts it."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = bool(name)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever signed it is another question
    try:
        client.load_verify_locations(cadata=leaf)
    except (ssl.SSLError, ValueError):
        return 0, 0.0
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=name or None)
    theirs = server.wrap_bio(there, back, server_side=True)
    for _ in range(10):
        for each in (ours, theirs):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_code, 0.0
            except ssl.SSLError:
                return 0, 0.0
            if each is ours:
                ends = (ours.getpeercert() or {}).get("notAfter")
                return 0, ssl.cert_time_to_seconds(str(ends)) if ends else 0.0
    return 0, 0.0
