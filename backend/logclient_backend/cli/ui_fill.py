"""Fills the store of `logclient ui` from a folder with runs, and goes on while programs write there.

Runs in threads of the process that `logclient ui` is. First the documents of all runs, the newest run first, so the
list of runs is there at once; then records, by the code of `logclient sync`. Nothing in the folder is changed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..wal.documents import DocumentFile
from ..wire.credentials import Access
from ..wire.messages import NotTaken, Parcel
from . import sync_nodes as uploads
from .sync_nodes import Upload
from .sync_workers import Job, Plan, Pool

if TYPE_CHECKING:
    from ..collector.serve import Collector

EVERY_S = 1.0  # between two looks at the folder
_JOBS = 2  # folders side by side: they share this process with the committing thread
_TIMEOUT_S = 60.0
_PUT_S = 10.0
_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Filled:
    """Progress of the filling."""

    nodes: int = 0
    of_nodes: int = 0
    trouble: str = ""  # of a folder that could not be read

    @property
    def is_complete(self) -> bool:
        return self.nodes >= self.of_nodes


class Filler:
    """The thread that looks at the folder, again and again."""

    def __init__(self, collector: Collector, folder: str, access: Access) -> None:
        self._collector = collector
        self._folder = folder
        self._plan = Plan(access, f"ui {version('logclient')}", _TIMEOUT_S)
        self._done: dict[tuple[str, str], tuple[object, ...]] = {}
        self._is_stopped = threading.Event()
        self.filled = Filled()
        self._thread = threading.Thread(target=self._work, name="fill", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; what is under way may be cut off."""
        self._is_stopped.set()
        self._thread.join(_STOP_S)

    def _work(self) -> None:
        is_first = True
        while not self._is_stopped.is_set():
            begun = time.monotonic()
            found, skipped = uploads.find([self._folder])
            found.reverse()
            if is_first:
                self.filled = Filled(0, len(found))
                for upload in found:
                    self._put_documents(upload)
                is_first = False
            trouble = next((f"{each.path}: {each.reason}" for each in skipped), "")
            self._send(found, trouble)
            self._is_stopped.wait(max(0.0, begun + EVERY_S - time.monotonic()))

    def _put_documents(self, upload: Upload) -> None:
        """Commit what a list of runs shows of a node; its records come later."""
        from ..collector.commit import Source

        for folder in upload.folders:
            try:
                documents = DocumentFile(folder).load()
            except (OSError, ValueError):
                continue  # named when it is sent
            if documents and not self._is_stopped.is_set():
                source = Source(upload.run, upload.node, True, _Nobody())
                try:
                    edits = upload.edits.dumps() if upload.edits else None
                    parcel = Parcel(1, documents=documents, edits=edits)
                    self._collector.committer.put(source, parcel, len(documents), _PUT_S)
                except NotTaken:
                    return  # it stops

    def _send(self, found: list[Upload], trouble: str) -> None:
        """Send what changed since it was sent last."""
        jobs = []
        for upload in found:
            signature = upload.signature()
            if self._done.get((upload.run, upload.node)) != signature or upload.shm_dir:
                self._done[upload.run, upload.node] = signature
                jobs.append(Job(upload))
        pool = Pool(self._plan, jobs, _JOBS)
        done = len(found) - len(jobs)
        while not pool.wait(0.2):
            self.filled = Filled(done + sum(bool(job.outcome) for job in jobs), len(found), trouble)
            if self._is_stopped.is_set():
                pool.stop(_STOP_S)
                return
        for job in jobs:
            if not job.is_good:
                self._done.pop((job.upload.run, job.upload.node), None)
                trouble = trouble or f"{job.upload.name}: {'; '.join(job.reasons)}"
        self.filled = Filled(len(found), len(found), trouble)


class _Nobody:
    """Takes answers of the committing thread: what is refused here is reported when the node is sent."""

    def ack(self, upto: int) -> None:
        pass

    def refuse(self, refused: NotTaken, parcel: int = 0) -> None:
        pass
