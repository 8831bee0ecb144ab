"""The process that ships: what is staged on tmpfs and stored in the run folder goes to a collector.

Forked by the supervisor (`ship_supervisor.py`), the only process of the agent that loads and uses grpc. The run folder
may hang for ever; it is read in a thread of its own (`ship/source.py`), and what is on tmpfs goes on being shipped.

::

    agent.status    state, beat, texts, count of records acked     words and texts of `logclient.shm.layout`
    shipped.json    {"collector", "documents": digest of those that are there, "refused": records,
                     "streams": {hex: [[first, last], ...]}}       what the collector has, of each stream

Invariants:

- the token is nowhere but in this process's memory (and where it came from);
- it ends when its supervisor asks for it, when supervisor and worker are gone for good, or when there is nothing that
  could ever be shipped, and it may be killed at any moment.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from logclient.errors import BadArgument
from logclient.shm import layout, modes, stop_requests
from logclient.shm.health import page_address
from logclient.shm.regular import read_regular
from logclient.shm.shm_dir import ShmDir, folder_name

from ...wire import messages
from ..host.crash_report import describe
from ..host.pauses import Pipe, Pipes, Sleeper
from ..host.shm_dir_handle import NOTE, ShmDirHandle
from ..host.status import StatusPage
from ..output.probe import HAS_FOLDER
from ..settings import Settings

if TYPE_CHECKING:
    from ...ship.blobs import BlobUpload
    from ...ship.progress import Progress
    from ...ship.source import FolderSource
    from ...wire.address import Address

SHIPPED_FILE = "shipped.json"
LEFT, FAILED, NOWHERE, REFUSED = (
    0,
    4,
    5,
    6,
)  # exit codes: asked to; said why; there is no server; for now no use
WAITING = layout.SHIP_STATES.index("waiting")

_ALONE_S = 60.0  # without a sign of supervisor and worker
_SHARE = 20  # telling what is acked takes at most 1/20 of the time
_WRITE_EVERY_S = 0.1
_AWAKE_S = 0.15  # a worker that looked so lately looks again soon
_RETRY_S = 60.0  # after something that only its user can put right
REST_S = 2.0  # between two turns while nothing comes, unless somebody ends the pause
_SHORT_S = 0.2  # where nobody can
_LISTEN_S = 3600.0
_REST_SLICE_S = 4.0  # without a conversation; whoever has something to send ends it
_DISK_REST_S = 10.0  # between two looks at the run folder while nothing is staged
_POLL_S = 1.0  # of the run folder, which has what was on tmpfs before we came
_BLOBS_S, _BLOBS_RETRY_S = 0.5, 15.0  # between two looks for blobs; after trouble with them
_CLOSE_S = 0.5  # within what the supervisor waits for us
_FOLDERS_EVERY_S = 0.5
_ANSWER_S = 10.0  # for the run folder's, until it is taken as wished


def digest(documents: bytes) -> str:
    """Return the digest of a node's documents that `shipped.json` holds."""
    return messages.digest(documents).hex()


def run(handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes) -> int:
    """The whole life of this process; its exit code."""
    for kept in handle.kept():
        handle.let_go(kept)  # a descriptor of ours would hold memory that is given back
    writer = StatusWriter(handle, status, pipes.worker)
    try:
        return _run(handle, settings, writer, pipes.shipper)
    except Exception as error:  # noqa: BLE001 - a traceback would read source files
        writer.fail(describe(error))
        return FAILED


def _run(handle: ShmDirHandle, settings: Settings, writer: StatusWriter, pipe: Pipe) -> int:
    # Here, not above: what is loaded for shipping costs 0.2 s and 30 MB that neither supervisor nor worker shall pay.
    from ...wire import credentials

    server = str(handle.shm_dir.facts.get("server") or "")
    sleeper = Sleeper(pipe)
    rest_s = REST_S if sleeper.may_be_long else _SHORT_S
    while True:
        try:
            access = credentials.find(server)
        except BadArgument as error:
            writer.wait(server, str(error))
        else:
            break
        until = time.monotonic() + _RETRY_S
        while time.monotonic() < until:
            if not writer.is_wanted():
                return LEFT
            sleeper.sleep(rest_s)
    if access is None:
        return NOWHERE
    writer.begin(access.address)

    from ...ship.blobs import BlobUpload
    from ...ship.progress import Progress
    from ...ship.settings import ShipSettings
    from ...ship.shipper import Shipper
    from ...ship.source import FolderSource
    from ...wire import channel
    from ...wire.blobs import Uploads
    from ...wire.client import Session
    from .node_reports import NodeReports

    channel.sleep_long()
    progress = Progress()
    is_far = bool(handle.shm_dir.folder_answer().get("network"))  # a file system that is better asked rarely
    poll_s = max(_POLL_S, settings.network_sync_s if is_far else 0.0)
    disk_rest_s = max(poll_s, _DISK_REST_S if sleeper.may_be_long else 0.0)
    source = FolderSource([], shm_dir=handle.path, status=writer.words, poll_s=poll_s, rest_s=disk_rest_s)
    folders = Folders(handle, source.add_folder)

    def is_wanted() -> bool:
        folders.look()
        writer.look(progress)
        return writer.is_wanted()

    identity = messages.Hello(str(handle.shm_dir.run_id), str(handle.shm_dir.node), "agent")

    opens = access

    def connect() -> Session:
        nonlocal opens
        if progress.reason == messages.UNAUTHORIZED:
            opens = credentials.renewed(opens, server)
        return Session(opens, identity)

    ship_settings = ShipSettings(
        close_s=_CLOSE_S,
        idle_s=rest_s,
        slice_s=rest_s,
        rest_s=settings.ship_rest_s,
        rest_slice_s=_REST_SLICE_S if sleeper.may_be_long else _SHORT_S,
    )
    shipper = Shipper(connect, source, progress, ship_settings)
    shipper.on_request = partial(hand_in, handle)
    shipper.sender.newest_report = NodeReports(handle, writer.words).newest

    def listen() -> None:
        while True:
            if sleeper.sleep(_LISTEN_S):
                source.expect()
                shipper.wake()

    uploads = BlobUpload(lambda: Uploads(opens, identity.run, identity.node))
    ships = threading.Thread(
        target=_ship_blobs, args=(uploads, source, writer.words), name="blobs", daemon=True
    )
    ships.start()
    if sleeper.may_be_long:
        threading.Thread(target=listen, name="wake-ups", daemon=True).start()
    is_refused = not shipper.run(is_wanted)
    writer.look(progress, is_last=True)
    return REFUSED if is_refused else LEFT


def _ship_blobs(uploads: BlobUpload, source: FolderSource, words: memoryview) -> None:
    """In a thread, which may hang with the disk: send blobs of media values, as they come."""
    seen, pause_s = 0, _BLOBS_S
    while True:
        stored = words[layout.AGENT_MEDIA_STORED]
        if (stored != seen or uploads.waiting) and source.folders:
            is_done = uploads.run(source.folders)
            words[layout.AGENT_BLOBS_WAITING] = uploads.waiting
            words[layout.AGENT_BLOBS_SEEN] = seen = stored
            pause_s = _BLOBS_S if is_done else min(_BLOBS_RETRY_S, 2 * pause_s)
        time.sleep(pause_s)


def hand_in(handle: ShmDirHandle, request: messages.Request) -> None:
    """Pass a request to stop or to save on to the worker, which takes each once."""
    checked = stop_requests.checked({**asdict(request), "via": stop_requests.SERVER})
    if checked is not None:
        try:
            stop_requests.ask(handle.shm_dir, checked)
        except OSError:
            return  # tmpfs is full, or the folder is gone: the collector sends it again in the next conversation


class Folders:
    """The folders that hold the node's segments beside tmpfs; the shm directory names them sooner or later."""

    def __init__(self, handle: ShmDirHandle, add: Callable[[str], None]) -> None:
        self._handle = handle
        self._add = add
        self._has_home = False
        self._begun = time.monotonic()
        self._looked_at = 0.0
        self._seen_ns = 0

    def look(self) -> None:
        """With each turn of the shipper."""
        now = time.monotonic()
        if now - self._looked_at < _FOLDERS_EVERY_S:
            return
        self._looked_at = now
        if self._has_home and not self._handle.has_changed_since(self._seen_ns):
            return
        self._seen_ns = self._handle.changed_ns()
        shm_dir = self._handle.shm_dir
        if not self._has_home:
            answer = shm_dir.folder_answer()
            if answer.get("state") in HAS_FOLDER:
                self._has_home = True
                self._add(_node_folder(shm_dir, str(answer["dir"])))
            elif not answer and now - self._begun > _ANSWER_S and shm_dir.dir:
                self._add(_node_folder(shm_dir, shm_dir.dir))  # the worker takes it, too
        try:
            notes = [name for name in os.listdir(self._handle.path) if name.endswith(NOTE)]
        except OSError:
            return
        for name in notes:  # of segments that lie in a spool
            try:
                self._add(os.path.dirname(json.loads(read_regular(self._handle.file(name)))["path"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue


def _node_folder(shm_dir: ShmDir, base: str) -> str:
    return os.path.join(base, folder_name(shm_dir.run_id), shm_dir.node)


class StatusWriter:
    """Writes how shipping goes, for trainers, worker and supervisor: all that this process writes."""

    def __init__(self, handle: ShmDirHandle, status: StatusPage, worker: Pipe) -> None:
        self._handle = handle
        self._status = status
        self._worker = worker
        self.words = status.words
        self._address: Address | None = None
        self._texts = ("", "", "", "")  # as they were written last
        self._web = ("", "")
        self._page = page_address(self.words)  # as the process before had it
        self._records = 0  # as they were written last
        self._moved_at = 0.0
        self._seen: tuple[object, ...] = ()
        self._written_at = self._pause_s = 0.0

    def is_wanted(self) -> bool:
        """With each turn: a sign of life, and whether to go on."""
        words = self.words
        self._status.beat(layout.AGENT_SHIP_BEAT)
        is_alone = (
            min(map(self._status.age_s, (layout.AGENT_SUPERVISOR_BEAT, layout.AGENT_WORKER_BEAT))) > _ALONE_S
        )
        return not (words[layout.AGENT_SHIP_STOP] or is_alone)

    def look(self, progress: Progress, *, is_last: bool = False) -> None:
        """With each turn of the shipper: what is new."""
        words = self.words
        if progress.web != self._web:
            self._look_at_page(progress.web)
        self._write_server(progress.trouble, progress.refusal)
        if not is_last or progress.state in layout.SHIP_STATES:
            words[layout.AGENT_SHIP_STATE] = layout.SHIP_STATES.index(progress.state)
        words[layout.AGENT_SHIP_REFUSED] = progress.refused_records
        words[layout.AGENT_SHIPPED] += progress.records - self._records
        self._records = progress.records
        if progress.acked_at != self._moved_at:
            self._moved_at = progress.acked_at
            words[layout.AGENT_SHIP_MOVED_NS] = time.monotonic_ns()
        seen = (progress.changes, progress.documents_acked, progress.refused_records)
        age_s = time.monotonic() - self._written_at
        if progress.collector and seen != self._seen and (is_last or age_s > self._pause_s):
            self._write_acked(progress)
            self._seen = seen

    def _write_acked(self, progress: Progress) -> None:
        begun = time.monotonic()
        content = {
            "collector": progress.collector,
            "documents": progress.documents_acked.hex(),
            "refused": progress.refused_records,
            "streams": {stream.hex(): seqs.ranges() for stream, seqs in progress.stored_copy().items()},
        }
        try:
            modes.publish(self._handle.file(SHIPPED_FILE), json.dumps(content).encode())
            self.words[layout.AGENT_SHIP_WRITTEN] += 1
            if self._status.age_s(layout.AGENT_WORKER_BEAT) > _AWAKE_S:
                self._worker.ring()
        except OSError:
            pass  # tmpfs is full: written again with what comes
        self._written_at = time.monotonic()
        self._pause_s = max(_WRITE_EVERY_S, _SHARE * (self._written_at - begun))

    def begin(self, address: Address) -> None:
        """There is a server."""
        self._address = address
        self._write_server("")
        self.words[layout.AGENT_SHIP_STATE] = layout.SHIP_STARTING

    def wait(self, address: str, error: str) -> None:
        """Nothing can be shipped now."""
        self._write_server(error, address=address)
        self.words[layout.AGENT_SHIP_STATE] = WAITING

    def fail(self, error: str) -> None:
        """This process ends because of that."""
        self.wait(self._texts[0], f"the process that ships failed: {error}")

    def _write_server(self, error: str, reason: str = "", *, address: str = "") -> None:
        where = str(self._address) if self._address is not None else address
        texts = where, error, reason, self._page
        if texts != self._texts:
            self._texts = texts
            self._status.write_server(*texts)

    def _look_at_page(self, web: tuple[str, str]) -> None:
        """The collector has named the address of its page; the file that keeps it lies on a disk that may hang."""
        from ...wire import known_pages, web_address

        self._web, server = web, self._address
        assert server is not None
        self._page = page = web_address.page_of(*web, server)
        if page:
            threading.Thread(
                target=lambda: known_pages.note(server, page), name="known-pages", daemon=True
            ).start()
