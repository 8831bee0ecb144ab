"""Orders to a running collector from the same user on the same machine: a socket in its data folder.

The folder lets in nobody else, and the kernel names the caller; so no token is needed. One JSON object a line goes each
way: `{"do": "backup", ...}`, then `{"ok": true, ...}` or `{"ok": false, "error": sentence}`.

`Control` runs in the collector: one thread that accepts, and one per order. `ask` runs in the command.

Invariants: an order is refused before it is read unless its sender is this user or root; at most `_MAX_ORDERS` are
carried out at once.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from logclient.errors import LogclientError
from logclient.shm import modes

from .data_folder import SOCKET, DataFolder
from .eventlog import EventLog
from .store.interface import StoreError

_MAX_ORDERS = 4
_MAX_BYTES = 1 << 16
_READ_S = 10.0
_UCRED = struct.Struct("3i")

Orders = Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]


class Control:
    """Listens in the data folder."""

    def __init__(
        self,
        data: DataFolder,
        orders: Orders,
        log: EventLog,
        *,
        name: str = SOCKET,
        most_orders: int = _MAX_ORDERS,
        most_bytes: int = _MAX_BYTES,
    ) -> None:
        """`name`: of the socket's file; `most_orders`: carried out at once; `most_bytes`: of one order."""
        self._most_bytes = most_bytes
        self._orders = orders
        self._log = log
        self._free = threading.Semaphore(most_orders)
        self._folder = os.open(data.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._path = f"/proc/self/fd/{self._folder}/{name}"  # a socket's path may be no longer than 107 bytes
        modes.remove_if_there(self._path)  # of a collector that was killed: we hold the store's lock
        self._socket.bind(self._path)
        os.chmod(name, 0o600, dir_fd=self._folder)
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more orders; those that are being carried out go on."""
        modes.remove(self._path)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join(5.0)
        self._socket.close()
        os.close(self._folder)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(timeout=_READ_S):
                caller.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(caller,), name="order", daemon=True).start()
            except RuntimeError:
                self._free.release()
                caller.close()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with caller:
                caller.settimeout(_READ_S)
                raw = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
                if _UCRED.unpack(raw)[1] not in (os.geteuid(), 0):
                    return
                answer = self._answer(_line(caller, self._most_bytes))
                caller.settimeout(_READ_S)
                caller.sendall(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError):
            pass  # whoever asked is gone, or is no command of ours
        finally:
            self._free.release()

    def _answer(self, line: bytes) -> dict[str, Any]:
        order = json.loads(line)
        function = self._orders.get(str(order.get("do"))) if isinstance(order, dict) else None
        if function is None:
            return {
                "ok": False,
                "error": "the collector that runs knows no such order: is it of another version?",
            }
        try:
            return {"ok": True, **function(order)}
        except (LogclientError, OSError) as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001  # one order must not take the collector with it
            self._log.fault(f"the order {order.get('do')!r}", error)
            return {
                "ok": False,
                "error": f"a fault in the collector: {type(error).__name__}; its log has more",
            }


def ask(
    data: DataFolder,
    do: str,
    *,
    timeout_s: float,
    name: str = SOCKET,
    most_bytes: int = _MAX_BYTES,
    **order: Any,
) -> dict[str, Any] | None:
    """Return the answer of the collector that runs there; None where none runs. `StoreError` with its sentence.

    `most_bytes`: of the answer.
    """
    deadline = time.monotonic() + timeout_s
    folder = os.open(data.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as call:
            call.settimeout(timeout_s)
            try:
                call.connect(f"/proc/self/fd/{folder}/{name}")
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            call.sendall(json.dumps({"do": do, **order}).encode() + b"\n")
            answer = json.loads(_line(call, most_bytes, deadline))
    except TimeoutError:
        raise StoreError(
            f"the collector has not answered within {timeout_s:g} s; it may still do it"
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"the collector went away before it answered ({error})") from error
    finally:
        os.close(folder)
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise StoreError(str(answer.get("error") if isinstance(answer, dict) else answer))
    return answer


def _line(stream: socket.socket, most_bytes: int = _MAX_BYTES, deadline: float = math.inf) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n"):
        if deadline < math.inf:
            stream.settimeout(max(0.001, deadline - time.monotonic()))
        part = stream.recv(1 << 16)
        found += part
        if not part or len(found) > most_bytes:
            raise ValueError("no line")
    return bytes(found)
