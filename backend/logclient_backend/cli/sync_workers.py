"""Sends uploads, several side by side, each in a thread of its own: the work of `logclient sync`.

`Pool.run` starts the threads and lets the caller look at `jobs` until all are done; it may stop them at any moment,
and what is acknowledged by then is not sent again by the next sync.

Invariants:

- a job ends: with all that was there acknowledged, refused for good, or after `timeout_s` in which nothing moved;
- a collector that is not there is waited for once, not once for each job: when one has waited in vain, and until
  something moves again, the others give up with their first trouble;
- memory is bounded by the number of jobs at once.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

from logclient.errors import LogclientError, Unsupported
from logclient.spawn.agent import map_status

from ..runs import live
from ..ship.blobs import BlobUpload
from ..ship.progress import IDLE, Progress
from ..ship.settings import ShipSettings
from ..ship.shipper import Shipper
from ..ship.source import FolderSource
from ..wal.coverage import Spans
from ..wal.reader import WalReader
from ..wire.blobs import Uploads
from ..wire.client import Session
from ..wire.credentials import Access
from ..wire.messages import UNREACHABLE, Hello
from .sync_nodes import Upload

_POLL_S = 0.25  # between looks at a folder that somebody writes into meanwhile
_FEED_BYTES = 4 << 20

SENT, THERE, PARTIAL, FAILED, STOPPED = "sent", "already there", "partial", "failed", "interrupted"
OUTDATED = "outdated"  # all records are there, and documents that are newer than these


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of an upload."""

    access: Access
    client: str
    timeout_s: float
    revive: bool = False


@dataclass(slots=True)
class Job:
    """One upload, and what became of it."""

    upload: Upload
    progress: Progress = field(default_factory=Progress)
    total: int = 0  # records that lie there
    outcome: str = ""  # empty: not yet
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.outcome in (SENT, THERE, OUTDATED)

    @property
    def left(self) -> int:
        """Records that were to be sent, as far as that is known."""
        return max(0, self.total - self.progress.already)


class Pool:
    """Threads that send."""

    def __init__(self, plan: Plan, jobs: list[Job], count: int) -> None:
        self.jobs = jobs
        self._plan = plan
        self._is_stopped = False
        self._pulse = Pulse()
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self._waiting.put(job)
        self._threads = [
            threading.Thread(target=self._work, name="upload", daemon=True)
            for _ in range(min(count, len(jobs)))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all are done, or so long."""
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self, timeout_s: float) -> None:
        """Nothing more is sent."""
        self._is_stopped = True
        self.wait(timeout_s)
        for job in self.jobs:
            job.outcome = job.outcome or STOPPED

    def _work(self) -> None:
        while not self._is_stopped:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.monotonic()
            try:
                self._send(job)
            except (LogclientError, OSError) as error:
                job.reasons.append(str(error))
                job.outcome = FAILED
            except Exception as error:  # noqa: BLE001 - one bad folder must not keep the others from being sent
                job.reasons.append(f"{type(error).__name__}: {error}")
                job.outcome = FAILED
            job.seconds = time.monotonic() - begun

    def _send(self, job: Job) -> None:
        job.total = count(job.upload)
        progress, source = job.progress, source_of(job.upload)
        shipper = Shipper(
            lambda: Session(self._plan.access, hello(job.upload, self._plan)),
            source,
            progress,
            ShipSettings(until_done=True, is_over=job.upload.is_over),
            log=None,
        )
        patience = Patience(progress, source, self._plan.timeout_s, self._pulse)
        is_taken = shipper.run(lambda: not self._is_stopped and patience.lasts())
        troubles = shipper.troubles
        if progress.records > job.left:  # the run went on meanwhile
            job.total = progress.already + progress.records
        job.reasons += [job.upload.problem] if job.upload.problem else []
        job.reasons += troubles.values()
        if lost := _lost(job.upload, source, shipper.documents) if shipper.is_done else 0:
            job.reasons.append(
                f"{lost:,} records were durable once and cannot be read any more; "
                f"`logclient wal verify {job.upload.folders[0]}` says more"
            )
        missing = self._send_blobs(job) if shipper.is_done else ""
        if not is_taken:
            job.outcome = FAILED
            job.reasons.append(progress.error)
        elif not shipper.is_done:
            job.outcome = STOPPED if self._is_stopped else FAILED
            if not self._is_stopped:
                job.reasons.append(patience.reason)
        elif troubles or lost or job.upload.problem or progress.trouble or missing:
            job.outcome = PARTIAL
            job.reasons += [missing] if missing else []
            if progress.trouble:
                job.reasons.append(progress.trouble)
        elif progress.outdated:
            job.outcome = OUTDATED
            job.reasons.append(progress.outdated)
        else:
            has_sent = progress.records or (progress.bytes and not job.total)
            job.outcome = SENT if has_sent else THERE

    def _send_blobs(self, job: Job) -> str:
        """Send what media values refer to; returns what is missing, in words."""
        uploads = BlobUpload(lambda: Uploads(self._plan.access, job.upload.run, job.upload.node))
        try:
            is_done = uploads.run(job.upload.folders, lambda: not self._is_stopped)
        finally:
            uploads.close()
        return (
            ""
            if is_done
            else f"{uploads.waiting:,} media values are not there: {uploads.trouble or 'stopped'}"
        )


class Pulse:
    """Is the collector there at all? What the jobs know of each other."""

    def __init__(self) -> None:
        self.is_gone = False  # a job waited for it in vain, and nothing moved in any since


class Patience:
    """Is it worth going on? Asked again and again by the shipper."""

    def __init__(self, progress: Progress, source: FolderSource, timeout_s: float, pulse: Pulse) -> None:
        self._progress = progress
        self._source = source
        self._timeout_s = timeout_s
        self._pulse = pulse
        self._mark: tuple[object, ...] = ()
        self._moved_at = time.monotonic()
        self.reason = ""

    def lasts(self) -> bool:
        progress = self._progress
        silent_s = self._source.silent_s
        mark = progress.records, progress.already, progress.documents_acked
        is_reading = progress.state == IDLE and silent_s < self._timeout_s
        if mark != self._mark or is_reading:
            if self._mark or is_reading:  # the first look tells nothing
                self._pulse.is_gone = False
            self._mark = mark
            self._moved_at = time.monotonic()
        is_unreachable = progress.reason == UNREACHABLE
        is_patient = time.monotonic() - self._moved_at < self._timeout_s
        if is_patient and not (is_unreachable and self._pulse.is_gone):
            return True
        if silent_s >= self._timeout_s:
            self.reason = f"{self._source.folders[0]} has not answered for {silent_s:.0f} s"
        else:
            self.reason = progress.error or f"nothing was acknowledged for {self._timeout_s:g} s"
            self._pulse.is_gone = is_unreachable
        return False


def hello(upload: Upload, plan: Plan) -> Hello:
    return Hello(upload.run, upload.node, plan.client, plan.revive, is_sync=True)


def source_of(upload: Upload) -> FolderSource:
    """Return the source of a run's records."""
    there = live.look(upload.shm_dir) if upload.shm_dir else None
    status = map_status(there.shm_dir) if there is not None else None
    return FolderSource(
        upload.folders, shm_dir=upload.shm_dir, status=status, poll_s=_POLL_S, feed_bytes=_FEED_BYTES
    )


def spans_of(upload: Upload) -> Spans:
    """Return the coverage that the footers give."""
    found = Spans()
    for folder in [*upload.folders, *([upload.shm_dir] if upload.shm_dir else [])]:
        try:
            found.merge(WalReader(folder).spans())
        except (OSError, Unsupported):
            continue  # named when it is read
    return found


def count(upload: Upload) -> int:
    """Records that lie there."""
    return sum(len(span.stored) for span in spans_of(upload).values())


def _lost(upload: Upload, source: FolderSource, documents: bytes | None) -> int:
    """Records that are damaged, or in files that are gone."""
    if documents is None or not upload.folders:
        return 0
    return source.lost(documents, spans_of(upload), is_over=upload.is_over)


def ask(upload: Upload, plan: Plan) -> tuple[int, int]:
    """(records that lie there, those that the collector has not), without sending any. `NotTaken` as `Session.open`."""
    spans = spans_of(upload)
    session = Session(plan.access, Hello(upload.run, upload.node, plan.client, is_sync=True))
    try:
        held = session.open().held
    finally:
        session.close(1.0)
    total = left = 0
    for stream, span in spans.items():
        total += len(span.stored)
        left += len(span.stored.minus(held[stream].stored)) if stream in held else len(span.stored)
    return total, left
