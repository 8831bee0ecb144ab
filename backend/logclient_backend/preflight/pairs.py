"""Check of connections: each rank connects to each other one at the address that gloo would use, and gets an echo.

Both directions of a pair are tried, as a port may be blocked at one end only. Among many ranks, each tries those at
distances of powers of two.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

from . import network
from .lines import Line, Message

ALL_UP_TO = 64  # ranks, of which each tries each
_BYTES = 64 << 10
_HELLO = 16  # bytes: token of the launch


def partners(rank: int, ranks: list[int]) -> list[int]:
    """Return the ranks that this one exchanges with."""
    if len(ranks) <= ALL_UP_TO:
        return [each for each in ranks if each != rank]
    at, size = ranks.index(rank), len(ranks)
    return sorted({ranks[(at + (1 << bit)) % size] for bit in range(size.bit_length())} - {rank})


def check(line: Line, given: dict[str, Any]) -> Message:
    """Listen, report where, wait for all addresses, and try them."""
    address = network.own_address()
    with network.listener(address.ip, given["port"], 1024) as server:
        port = server.getsockname()[1]
        line.send({"listening": [address.interface, address.ip, port], "chosen_by": address.chosen_by})
        peers: list[list[Any]] = []
        while not peers and not line.is_closed:
            for message in line.wait(given["wait_s"]):
                peers = message.get("peers", [])
        rank, ranks = given["rank"], sorted(each[0] for each in peers)
        wanted = set(partners(rank, ranks)) if rank in ranks else set()
        chosen = [each for each in peers if each[0] in wanted]
        asyncio.run(_exchange(line, server, given, chosen))
        return {}


async def _exchange(line: Line, server: socket.socket, given: dict[str, Any], peers: list[list[Any]]) -> None:
    """Report each pair, then go on serving until we are killed: others may still be at it."""
    token = str(given["token"]).encode().ljust(_HELLO)[:_HELLO]
    serving = await asyncio.start_server(lambda *ends: _serve(token, *ends), sock=server)
    async with serving:
        found = await asyncio.gather(*(_try(token, given["timeout_s"], *peer) for peer in peers))
        line.send({"pairs": found})
        while not line.is_closed:
            await asyncio.sleep(0.05)
            line.receive()
            line.flush()


async def _serve(token: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        if await reader.readexactly(_HELLO) == token:
            writer.write(await reader.readexactly(_BYTES))
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _try(token: bytes, timeout_s: float, rank: int, ip: str, port: int) -> dict[str, Any]:
    """Connect to one rank, send bytes and compare those that come back."""
    found: dict[str, Any] = {"rank": rank, "error": ""}
    before = time.monotonic()
    stage = "connecting"
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(ip, port)
            found["connect_s"] = time.monotonic() - before
            stage = "the echo of 64 KiB"
            content = os.urandom(_BYTES)
            writer.write(token + content)
            if await reader.readexactly(_BYTES) != content:
                found["error"] = "other bytes came back than were sent"
            found["echo_s"] = time.monotonic() - before - found["connect_s"]
    except TimeoutError:
        found["error"] = f"{stage} took more than {timeout_s:g} s"
    except (OSError, asyncio.IncompleteReadError) as error:
        found["error"] = f"{stage} failed: {getattr(error, 'strerror', None) or error}"
    finally:
        if writer is not None:
            writer.close()
    return found
