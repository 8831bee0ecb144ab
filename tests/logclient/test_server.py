"""What a trainer sees of shipping: the form of an address, and what the agent told in its status page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import logclient
from logclient.config import Config
from logclient.shm import layout
from logclient.shm.health import describe_server, page_address, ship_texts
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.wire import address


@pytest.fixture
def page(tmp_path: Path) -> StatusPage:
    return StatusPage(str(tmp_path / "agent.status"))


@pytest.mark.parametrize(
    "server",
    [
        "grpc://host",
        "grpc://host:7788",
        "grpcs://a.b.example:1/",
        "host:7788",
        "host",
        "grpc://[::1]:80",
        "GRPC://h",
    ],
)
def test_address_is_taken_as_the_agent_takes_it(server: str) -> None:
    """What the trainer lets pass can be parsed."""
    assert Config({"server": server}).server == server
    address.parse(server)


@pytest.mark.parametrize(
    "server",
    [
        "http://host",
        "grpc://",
        "grpc://host:0",
        "grpc://host:99999",
        "grpc://host:port",
        "grpc://h/x",
        "grpc://a b",
        ":1",
    ],
)
def test_address_that_makes_no_sense_raises_at_once(server: str) -> None:
    """In init, with what to write instead."""
    with pytest.raises(logclient.BadArgument, match="expected grpc://HOST:PORT"):
        logclient.init("case", server=server)


def test_password_in_an_address_is_not_repeated() -> None:
    """Neither accepted nor shown."""
    with pytest.raises(logclient.BadArgument) as raised:
        logclient.init("case", server="grpc://me:secret@host:1")
    assert "secret" not in str(raised.value) and "LOGCLIENT_TOKEN" in str(raised.value)


def test_texts_are_the_newest_that_check(page: StatusPage) -> None:
    """A slot that is being written, or is damaged, is passed over; a long sentence is cut."""
    assert ship_texts(page.words) is None
    page.write_server("grpc://h:1", "")
    page.write_server("grpc://h:1", "line one\nline two")
    assert ship_texts(page.words) == ("grpc://h:1", "line one line two", "")
    newest = max(
        (layout.SHIP_TEXTS, layout.SHIP_TEXTS + layout.SHIP_TEXT_BYTES), key=lambda at: page.words[at >> 3]
    )
    page.words[(newest >> 3) + 1] ^= 1 << 40  # its CRC
    assert ship_texts(page.words) == ("grpc://h:1", "", "")
    page.write_server("grpc://h:1", "\u00e9" * 5_000)
    told = ship_texts(page.words)
    assert told is not None and told[1].startswith("\u00e9\u00e9") and len(told[1]) < layout.SHIP_TEXT_BYTES
    page.write_server("grpc://h:1", "7 records are refused: too odd", "too \n odd")
    assert ship_texts(page.words) == ("grpc://h:1", "7 records are refused: too odd", "too odd")
    page.write_server("grpc://h:1", "e" * 5_000, "r" * 5_000)
    told = ship_texts(page.words)
    assert told is not None and told[1][:2] == "ee" and told[2][:2] == "rr"
    page.write_server("grpc://h:1", "e" * 5_000, "r" * 5_000, "https://" + "a" * 392)
    told = ship_texts(page.words)
    assert told is not None and told[1][:2] == "ee" and told[2][:2] == "rr"
    assert page_address(page.words) == "https://" + "a" * 392, "it is not cut"
    page.write_server("grpc://h:1", "")
    assert page_address(page.words) == page_address(None) == ""
    assert layout.SHIP_TEXTS + 2 * layout.SHIP_TEXT_BYTES <= layout.STATUS_BYTES


def test_states_are_what_the_agent_says_unless_it_is_silent(page: StatusPage) -> None:
    """No agent yet, looking for a server, at work, without a sign of life, refused for good."""
    words, now = page.words, time.monotonic_ns()

    def state(wanted: str = "grpc://h:1") -> str:
        return str(describe_server(words, wanted, 3, now, 5.0)["state"])

    assert describe_server(None, "", 3, now, 5.0) == {
        "address": "",
        "state": "off",
        "error": "",
        "reason": "",
        "lag_records": 0,
        "refused_records": 0,
    }
    assert (state(), state("")) == ("starting", "off")
    words[layout.AGENT_SHIP_STATE] = layout.SHIP_LOOKING
    assert (state(), state("")) == ("starting", "off")
    page.write_server("grpc://h:1", "")
    page.beat(layout.AGENT_SHIP_BEAT)
    for number, name in enumerate(layout.SHIP_STATES[2:], 2):
        words[layout.AGENT_SHIP_STATE] = number
        assert state("") == name
    words[layout.AGENT_SHIP_BEAT] = now - 60 * 10**9
    assert state() == "refused", "it has ended"
    words[layout.AGENT_SHIP_STATE] = layout.SHIP_STATES.index("idle")
    assert state() == "stalled"
    words[layout.AGENT_SHIP_STATE] = 200
    assert state() == "stalled", "of a newer agent"
