"""A collector's store and HTTP API without its process: runs of folders are written into it; it answers over TCP."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from logclient_backend.collector.catalog import Catalog, edits_in, state_now
from logclient_backend.collector.commit import Committer
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.metrics import Metrics
from logclient_backend.collector.sessions import Sessions
from logclient_backend.collector.stop_requests import StopRequests
from logclient_backend.collector.store.interface import Parcel, Store
from logclient_backend.collector.store.open import open_store
from logclient_backend.collector.tokens import ADMIN, CONTROL, EDIT, INGEST, READ, Grant
from logclient_backend.collector.web.app import make_app
from logclient_backend.collector.web.context import Backing
from logclient_backend.runs.edits import Changes, Edits
from logclient_backend.runs.folder import Found, find
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.reader import WalReader
from logclient_backend.wal.scan import Gap

from .backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec, rec, simple_run

TOKENS = {"reads": READ, "rules": ADMIN, "ships": INGEST, "asks": CONTROL, "edits": EDIT}  # token: role
PATIENCE_S = 60.0
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def grant_of(token: str | None) -> Grant | None:
    role = TOKENS.get(token or "")
    return None if role is None else Grant(f"of {role}", frozenset({role}))


def _folder() -> str:
    """A folder that goes with this process."""
    _FOLDERS.append(tempfile.TemporaryDirectory())
    return _FOLDERS[-1].name


def backing(store: Store, **more: Any) -> Backing:
    """As `collector/serve.py` makes it, with the tokens above."""
    return Backing(
        store,
        state=state_now,
        delete=lambda run: store.writer.delete(run, time.time_ns()),
        undelete=store.writer.undelete,
        edit=editor(store),
        stop_requests=StopRequests(_folder(), store.reader, EventLog()),
        **{
            "check": grant_of,
            "metrics": lambda: "logclient_up 1\n",
            "sessions": Sessions(_folder(), is_valid=lambda grant: True),
            **more,
        },
    )


def editor(store: Store) -> Callable[[str, Changes, str], Edits]:
    """What edits a run: the committing thread's function, in the thread of whoever asks."""
    catalog = Catalog(store.reader.documents, store.reader.contents, edits_in(store.reader))
    committer = Committer(store, catalog, Metrics(), EventLog(), queue_bytes=1 << 20)

    def edit(run: str, changes: Changes, who: str) -> Edits:
        catalog.forget(run)  # others write into the store
        return committer.edit(run, changes, who)

    return edit


def take_in(store: Store, folder: Path) -> list[Found]:
    """All runs of a folder as an upload brings them."""
    catalog = Catalog(store.reader.documents, store.reader.contents, edits_in(store.reader))
    runs = find(str(folder), live_dirs=[], home="/nonexistent")
    for run in runs:
        for node in run.nodes:
            now = min(node.heard_ns, time.time_ns())
            items = list(WalReader(node.path).items())
            documents = DocumentFile(node.path).load()
            told = (
                catalog.take(run.id, node.id, documents, now, is_sync=True, is_urgent=True)
                if documents
                else None
            )
            store.writer.write(
                [
                    Parcel(
                        run.id,
                        node.id,
                        now,
                        [item for item in items if isinstance(item, StreamColumns)],
                        [item for item in items if isinstance(item, Gap)],
                        documents if told is not None else None,
                        told,
                    )
                ]
            )
    return runs


@contextmanager
def made_store(folder: Path) -> Iterator[Store]:
    store = open_store(str(folder), is_durable=False)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def serving(stands_on: Backing, port: int = 0) -> Iterator[str]:
    """The API's address, over real TCP. Answers that last end soon after it does."""
    app = make_app(stands_on)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        app.state.live.stop()
        server.should_exit = True
        thread.join(PATIENCE_S)


def sample_runs(folder: Path) -> None:
    """`plain`: floats; `mixed`: every type, ranks, threads and a gap; `twice`: two attempts that overlap; odd names."""
    simple_run(folder, "plain", 200, name="mlp")
    simple_run(folder, "a/../b%2e?&=+#", 3, name="näme ☃")
    mixed = NodeMaker(folder, "mixed")
    told = {
        "config": {"lr": 0.1, "deep": {"a::b": [1, {"x": math.inf}]}, "odd": math.nan, "text": "nan"},
        "summary": {"best": -math.inf, "big": 2**70},
        "about": {"name": "every type", "tags": ["base", "line"], "notes": "n", "group": "g"},
    }
    mixed.process(1, documents=told)
    mixed.process(2, role="member", created_ns=NOW_NS + SECOND)
    one, two, other = (1, 1, 0), (2, 1, 1), (3, 2, 0)
    values = [
        (("x", "d", math.nan), ("big", "i", 2**70), ("t", "s", "nan"), ("f", "b", True)),
        (("x", "q", 2**60), ("t", "s", 'say "hi",\nyou ☃')),
        (("x", "r", math.inf), ("../etc", "d", -0.0)),
        (),
    ]
    mixed.segment(
        {
            one: [
                Rec(
                    seq, 2 * seq, 10 * seq, NOW_NS + seq * SECOND // 3, values[seq % 4], [None, 3, 0][seq % 3]
                )
                for seq in (*range(1, 40), *range(45, 60))
            ],
            two: [Rec(seq, 2 * seq + 1, -5 * seq, NOW_NS + seq, values[seq % 3]) for seq in range(1, 30)],
        },
        gaps=[(one, 40, 42, "forgotten"), (one, 43, 44, "damaged")],
    )
    mixed.segment(
        {other: [Rec(seq, seq, seq, NOW_NS + seq * SECOND // 2, values[0], 7) for seq in range(1, 50)]},
        is_open=True,
    )
    mixed.told(1, 1, 59, 54, 2)
    mixed.told(2, 1, 29, 29, lane=1)
    mixed.told(3, 2, 49, 49)
    mixed.save()
    twice = NodeMaker(folder, "twice")
    first = {"time": NOW_NS + 100 * SECOND, "alive": False, "exit_code": 1}
    second = {"time": NOW_NS + 400 * SECOND, "alive": False, "exit_code": 0}
    twice.process(1, end=first)
    twice.process(2, created_ns=NOW_NS + 200 * SECOND, end=second)
    twice.segment(
        {
            (1, 1, 0): [rec(seq, step=seq, loss=float(seq)) for seq in range(1, 91)],
            (2, 2, 0): [
                rec(seq, step=seq + 60, time=NOW_NS + (200 + seq) * SECOND, loss=1000.0 + seq)
                for seq in range(1, 61)
            ],
        }
    )
    twice.told(1, 1, 90, 90)
    twice.told(2, 2, 60, 60)
    twice.save()
