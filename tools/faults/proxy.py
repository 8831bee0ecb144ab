"""A TCP proxy that can be told to be slow, silent, broken or somebody else altogether.

    python -m tools.faults.proxy --target 127.0.0.1:7788 --be delay --how seconds=0.3        (prints its address)

`with Proxy("127.0.0.1:7788") as proxy:` is a process of its own, on `network` hosts too; it ends with its owner. What
it is (`Proxy.be`):

    passing     forwards
    delayed     forwards each byte `seconds` later, as many as come
    stalled     forwards nothing, closes nothing
    half_open   forwards what the client sends; no answer comes back
    cutting     resets each connection after `after` bytes from the client
    garbage     answers random bytes
    portal      a captive portal: whatever is asked, an HTML page is the answer
    big_error   an HTTP error with `size` bytes of text
    grpc_error  a gRPC error with `size` bytes of text, in HTTP/2
    login       an HTTP proxy (CONNECT) that wants `login` ("user:password"), and tells which logins it got

Connections that are open follow; the five that speak themselves cut those first. Needs no root.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.faults import kernel, network

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_S = 60.0  # for the process to start, and to answer
CHUNK = 65536
HELD = 256  # chunks on their way in one direction; beyond that the sender waits
SPEAKING = ("garbage", "portal", "big_error", "grpc_error", "login")
FORWARDING = ("passing", "delayed", "stalled", "half_open", "cutting")
PORTAL = b"<html><head><title>Welcome</title></head><body>Please accept our terms to use this network.</body></html>"


class Proxy:
    """The owner's side: one process that listens on one port."""

    def __init__(self, target: str, *, host: network.Host | None = None) -> None:
        """`target` is HOST:PORT; with `host` it listens there, on its address, else on loopback."""
        self.address = ""
        self._target = target
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        listen = "127.0.0.1" if self._host is None else self._host.address
        words = [
            sys.executable,
            "-m",
            "tools.faults.proxy",
            "--target",
            self._target,
            "--listen",
            listen,
            "--controlled",
        ]
        given: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT}
        if self._host is None:
            self._process = subprocess.Popen(words, **given)
        else:
            self._process = self._host.start(words, **given)
        self.address = self._answer()["address"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def be(self, what: str, **how: Any) -> None:
        self._ask(be=what, how=how)

    def cut(self) -> None:
        """Reset all connections that are open."""
        self._ask(cut=True)

    def facts(self) -> dict[str, Any]:
        """`connections` so far, `open` now, bytes `up` (from clients) and `down` that were forwarded, `logins`."""
        return self._ask()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
            raise TimeoutError(f"The proxy does not answer for {ANSWER_S:g} s.")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("The proxy ended; see standard error.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


class Server:
    """The process's side: all in one thread."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._what = "passing"
        self._how: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._facts: dict[str, Any] = {"connections": 0, "up": 0, "down": 0, "logins": []}

    def be(self, what: str, how: dict[str, Any]) -> None:
        if what not in (*SPEAKING, *FORWARDING):
            raise ValueError(f"A proxy cannot be {what!r}.")
        self._what, self._how = what, how
        if what in SPEAKING:
            self.cut()
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    def facts(self) -> dict[str, Any]:
        return {**self._facts, "open": len(self._writers)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._facts["connections"] += 1
        self._writers.add(writer)
        try:
            if self._what == "login":
                await self._log_in(reader, writer)
            elif self._what in SPEAKING:
                await self._speak(reader, writer)
            else:
                await self._forward(self._target, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side went away, which is its business
        finally:
            self._writers.discard(writer)
            writer.close()

    # ---- forwarding

    async def _forward(
        self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes = b""
    ) -> None:
        name, _, port = target.rpartition(":")
        try:
            back_reader, back_writer = await asyncio.open_connection(name, int(port))
        except OSError:
            _reset(writer)  # as near to "refused" as somebody who has accepted can get
            return
        try:
            back_writer.write(early)
            await asyncio.gather(
                self._flow("up", reader, back_writer, writer),
                self._flow("down", back_reader, writer, back_writer),
            )
        finally:
            back_writer.close()

    async def _flow(
        self, way: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        """One direction of a connection."""
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD)

        async def take() -> None:
            data = b"-"
            while data:
                data = await source.read(CHUNK)
                await held.put((loop.time(), data))

        taking = loop.create_task(take())
        passed = 0
        try:
            while True:
                came, data = await self._next(held, taking)
                if self._what == "delayed":
                    await asyncio.sleep(came + self._how["seconds"] - loop.time())
                while self._what == "stalled" or (self._what == "half_open" and way == "down"):
                    await self._changed.wait()
                if not data:
                    sink.write_eof()
                    return
                if self._what == "cutting" and way == "up" and passed + len(data) > self._how["after"]:
                    sink.write(data[: max(0, self._how["after"] - passed)])
                    await sink.drain()
                    _reset(other)
                    return
                passed += len(data)
                self._facts[way] += len(data)
                sink.write(data)
                await sink.drain()
        except OSError:
            _reset(other)  # what befell one side the other one shall hear of
        finally:
            taking.cancel()

    async def _next(
        self, held: asyncio.Queue[tuple[float, bytes]], taking: asyncio.Task[None]
    ) -> tuple[float, bytes]:
        """What was taken next; raises as the taking did."""
        waiting = asyncio.ensure_future(held.get())
        await asyncio.wait({waiting, taking}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and taking.done() and taking.exception() is not None:
            waiting.cancel()
            await taking
        return await waiting

    # ---- being somebody else

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(self._how.get("size", 20 << 20))
        if self._what == "garbage":
            writer.write(random.Random(0).randbytes(CHUNK))
        else:
            await reader.read(CHUNK)  # first the question
            if self._what == "portal":
                writer.write(_page(b"200 OK", len(PORTAL)) + PORTAL)
            elif self._what == "big_error":
                writer.write(_page(b"500 Internal Server Error", size) + b"x" * size)
            else:
                writer.write(_grpc_error(b"x" * size))
        await writer.drain()
        writer.write_eof()
        while await reader.read(CHUNK):  # closed by us with something unread, our answer might not arrive
            pass

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, _, rest = head[0].partition(" ")
        given = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        word = given.get("proxy-authorization", "").removeprefix("Basic ")
        login = base64.b64decode(word).decode("utf-8", "replace")
        self._facts["logins"].append(login)
        if method != "CONNECT" or login != self._how.get("login", ""):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        self._facts["asked_for"] = rest.split(" ")[0]
        await self._forward(self._target, reader, writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """End it by an RST."""
    handle = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _page(status: bytes, size: int) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % (status, size)


def _grpc_error(text: bytes) -> bytes:
    """HTTP/2 frames: settings, and the trailers that end the first call with code 13 and this text."""

    def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
        return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body

    def string(data: bytes) -> bytes:  # RFC 7541, 5.2, without Huffman codes
        if len(data) < 127:
            return bytes((len(data),)) + data
        rest, sizes = len(data) - 127, bytearray((127,))
        while rest >= 128:
            sizes.append(rest % 128 + 128)
            rest //= 128
        return bytes(sizes) + bytes((rest,)) + data

    fields = {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"13",
        b"grpc-message": text,
    }
    block = b"".join(b"\0" + string(name) + string(value) for name, value in fields.items())
    pieces = [block[at : at + 16384] for at in range(0, len(block), 16384)]
    frames = [frame(4, 0, 0, b""), frame(4, 1, 0, b"")]  # SETTINGS, and the answer to the client's
    for number, piece in enumerate(pieces):
        kind = 9 if number else 1  # CONTINUATION, HEADERS
        last = 4 if number == len(pieces) - 1 else 0  # END_HEADERS
        frames.append(frame(kind, last | (0 if number else 1), 1, piece))  # END_STREAM
    return b"".join(frames)


async def _control(server: Server) -> None:
    """Requests from standard input, a JSON object a line; over with its end."""
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    while line := await requests.readline():
        request = json.loads(line)
        try:
            if "be" in request:
                server.be(request["be"], request["how"])
            if "cut" in request:
                server.cut()
            answer = server.facts()
        except ValueError as error:
            answer = {"error": str(error)}
        _print(answer)


def _print(value: object) -> None:
    os.write(1, json.dumps(value).encode() + b"\n")


async def _serve(given: argparse.Namespace) -> None:
    server = Server(given.target)
    how: dict[str, Any] = {}
    for setting in given.how:
        name, _, value = setting.partition("=")
        how[name] = value if name == "login" else float(value)
    server.be(given.be, how)
    listening = await asyncio.start_server(server.serve, given.listen, given.port)
    host, port = listening.sockets[0].getsockname()[:2]
    if given.controlled:
        _print({"address": f"{host}:{port}"})
        await _control(server)
    else:
        os.write(1, f"{host}:{port}\n".encode())
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.faults.proxy",
        description="A TCP proxy that is slow, silent, broken or somebody else. Needs no root.",
    )
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="where to forward to")
    parser.add_argument("--listen", default="127.0.0.1", metavar="HOST", help="default 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--be", default="passing", choices=(*FORWARDING, *SPEAKING))
    parser.add_argument(
        "--how", nargs="*", default=[], metavar="NAME=VALUE", help="seconds=, after=, size=, login="
    )
    parser.add_argument("--controlled", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.controlled:
        kernel.die_with_parent(os.getppid())
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
