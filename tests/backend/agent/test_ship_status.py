"""What the worker makes of what the process that ships told, and when it may leave."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.agent.drain.node_document import Ledger
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.shipping import ship_status as module
from logclient_backend.agent.shipping.ship_process import SHIPPED_FILE, digest
from logclient_backend.agent.shipping.ship_status import Shipped

STREAM, PROCESS = "ab" * 16, "cd" * 16


class Node:
    """One worker's view, and the other side of it."""

    def __init__(self, handle: ShmDirHandle, page: StatusPage, leave_s: float = 60.0) -> None:
        self.handle, self.page, self.words = handle, page, page.words
        self.lines: list[str] = []
        self.ledger = Ledger(handle.shm_dir)
        self.shipped = Shipped(handle, page.words, self.ledger, self.lines.append, leave_s=leave_s)
        saved = {
            "processes": {PROCESS: {}},
            "streams": {STREAM: {"process": PROCESS, "stored": 10}},
        }
        self.ledger.absorb(json.dumps(saved).encode())

    def state(self, name: str, error: str = "") -> None:
        self.words[layout.AGENT_SHIP_STATE] = layout.SHIP_STATES.index(name)
        self.page.write_server("grpc://h:1", error)

    def report(self, *ranges: tuple[int, int], documents: bytes = b"", refused: int = 0) -> None:
        content = {"documents": digest(documents), "refused": refused, "streams": {STREAM: ranges}}
        Path(self.handle.file(SHIPPED_FILE)).write_text(json.dumps(content))
        self.words[layout.AGENT_SHIP_WRITTEN] += 1
        self.words[layout.AGENT_SHIP_MOVED_NS] = time.monotonic_ns()


@pytest.fixture
def page(tmp_path: Path) -> StatusPage:
    return StatusPage(str(tmp_path / "agent.status"))


@pytest.fixture
def node(handle: ShmDirHandle, page: StatusPage) -> Node:
    return Node(handle, page)


def test_what_is_acked_is_taken_over_once_and_as_a_whole(node: Node) -> None:
    """Another list counts, not the same one again; what is cut short in the file is left for the next look."""
    node.state("shipping")
    assert not node.shipped.look()
    node.report((1, 3), (5, 6))
    assert node.shipped.look() and not node.shipped.look()
    assert node.shipped.count(bytes.fromhex(STREAM)) == 5
    assert node.ledger.missing_there == 5
    before = node.shipped.acked
    Path(node.handle.file(SHIPPED_FILE)).write_text("{")
    node.words[layout.AGENT_SHIP_WRITTEN] += 1
    assert not node.shipped.look() and node.shipped.acked is before
    node.report((1, 2))
    assert node.shipped.look() and node.ledger.missing_there == 8, "another collector has less"


def test_without_a_server_there_is_nothing_to_look_for(node: Node) -> None:
    """No ship process has left a file: the worker need not look again. What an earlier agent's left is taken over."""
    node.state("off")
    assert not node.shipped.look()
    assert node.shipped.is_settled and not node.shipped.has_news()
    other = Node(node.handle, node.page)
    other.state("shipping")
    other.report((1, 4))
    other.words[layout.AGENT_SHIP_WRITTEN] = 0  # a page made anew
    assert other.shipped.look() and other.shipped.count(bytes.fromhex(STREAM)) == 4
    Path(node.handle.file(SHIPPED_FILE)).unlink()
    node.words[layout.AGENT_SHIP_WRITTEN] = 1
    assert not node.shipped.look() and not node.shipped.is_settled, (
        "what was said to be there is looked for again"
    )


def test_worker_stays_until_all_is_there_or_can_never_be(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before records and documents are acked or refused; not at all without a server or where it refused."""
    documents = b'{"all": true}'

    def is_done() -> bool:
        node.shipped.look()
        return node.shipped.is_done(documents)

    node.state("off")
    assert is_done()
    node.state("looking")
    assert not is_done()
    monkeypatch.setattr(module, "_LOOKING_S", 0.0)
    assert is_done(), "the home folder does not answer"
    node.state("idle")
    assert not is_done() and node.shipped.is_behind
    node.report((1, 10), documents=b"older")
    assert not is_done() and not node.shipped.is_behind
    node.report((1, 10), documents=documents)
    assert is_done()
    node.report((1, 7), documents=documents, refused=3)
    assert is_done()
    node.report((1, 7), documents=documents)
    assert not is_done()
    node.state("refused", "the run was deleted")
    assert is_done()


def test_patience_with_a_collector_begins_with_its_last_ack_and_with_who_logs(
    handle: ShmDirHandle, page: StatusPage
) -> None:
    """`leave_s` after both the worker goes; an ack or a process of the run begins it anew."""
    node = Node(handle, page, leave_s=0.2)
    node.state("waiting", "nobody listens")
    for begin_anew in (lambda: node.report((1, 1)), node.shipped.stay):
        begin_anew()
        begun = time.monotonic()
        while not node.shipped.is_done(b"x"):
            assert time.monotonic() - begun < 30
            time.sleep(0.01)
        assert time.monotonic() - begun >= 0.2


def test_trouble_is_said_once_a_minute(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log gets one line, then none for a minute, whatever happens; the documents say how it ended."""
    node.state("connecting")
    node.shipped.look()
    for number in range(50):
        node.state("waiting", f"try {number} failed")
        node.shipped.look()
        node.state("idle")
        node.shipped.look()
    assert node.lines == ["shipping: try 0 failed"]
    assert ship_of(node) == ("waiting", "try 0 failed"), "it is not written again for each try"
    node.shipped.is_done(b"")
    node.state("idle")
    node.shipped.look()
    assert ship_of(node) == ("connected", ""), "what stays is how it was in the end"
    monkeypatch.setattr(module, "_LOG_EVERY_S", 0.0)
    node.shipped._log_at = 0.0
    node.state("idle")
    node.shipped.look()
    assert node.lines[-1] == "shipping to grpc://h:1 works again"


def ship_of(node: Node) -> tuple[str, str]:
    """State and error in the documents."""
    ship = json.loads(node.ledger.content()[1])["ship"]
    return ship["state"], ship["error"]
