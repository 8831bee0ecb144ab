"""The shipper: one node's records and documents to one collector, for as long as it is wanted.

`Shipper.run` is a loop in the calling thread: connect, say what is new, keep it until it is acknowledged, and after any
trouble do that again, later each time. A silent, slow, refusing, garbage-speaking or vanished collector is one case.

Invariants:

- what was given by the source is kept here until it is acknowledged, or refused for good and counted;
- a conversation in which no record came for `rest_s` is closed, and another one begins when there is something to
  send: an open one costs both sides memory, and wakes grpc's threads some fifteen times a second;
- memory is bounded: by what may be under way, by one parcel being packed, and by what the source holds;
- what goes wrong becomes a sentence in `Progress`, and is said at most once a minute;
- only a refusal that is final ends it early: a deleted run, say. A token may be mended: that is tried each minute.

Does not: read folders (`source.py`), speak gRPC (`wire/client.py`), or decide when everything is over (who calls it).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..runs.document_head import is_closed, revision_of
from ..wal.seal import unseen_part
from ..wire import messages
from ..wire.client import Session
from ..wire.messages import Ack, HeldStream, NotTaken, Parcel, Welcome, digest
from .backoff import Backoff
from .bisect import Splitter
from .parcels import Packer, bytes_of
from .progress import CONNECTING, IDLE, REFUSED, SHIPPING, STOPPED, WAITING, Progress
from .settings import ShipSettings
from .source import FolderSource

_SAY_EVERY_S = 60.0
_SLOW_S = 60.0  # between tries where somebody has to mend something first
_QUIET_S = 10.0  # nothing came for so long: look less often
_NEEDS_MENDING = (messages.UNAUTHORIZED, messages.WRONG_PROTOCOL)


@dataclass(slots=True)
class _Sent:
    parcel: Parcel
    size: int  # in memory
    documents: bytes  # digest; empty: none


class Shipper:
    """One node, one collector."""

    def __init__(
        self,
        connect: Callable[[], Session],
        source: FolderSource,
        progress: Progress,
        settings: ShipSettings | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`connect` makes a session that is not open yet, for each try anew; `say` takes lines for a log."""
        self._connect = connect
        self._source = source
        self._progress = progress
        self._settings = settings or ShipSettings()
        self._say = say
        self._said: tuple[str, float] = ("", -_SAY_EVERY_S)
        self._backoff = Backoff(self._settings.first_pause_s, self._settings.most_pause_s)
        self._packer = Packer(self._settings.parcel_points, self._settings.parcel_bytes)
        self._again: deque[Parcel] = deque()  # was under way when a conversation broke, or refused in part
        self._splitter = Splitter()
        self._sent: deque[_Sent] = deque()  # under way
        self._sent_bytes = 0
        self._sent_at = self._moved_at = 0.0
        self._collector = ""
        self._documents_known = b""  # digest of what the collector has, or will never take
        self._revision_there = 0  # of the documents that the collector has; 0: not known
        self._documents_at = 0.0
        self._is_apart = False  # documents go in parcels of their own
        self._digest: tuple[bytes | None, bytes] = (None, b"")  # documents, and theirs
        self._asked: tuple[bytes, float] | None = (
            None  # documents by which to look what is missing, and since when
        )
        self._missing_told_for: bytes | None = None  # digest of the documents by which that was told last
        self._begun_at = 0.0
        self._is_enough = False
        self._session: Session | None = None
        self._woken = threading.Event()
        source.on_item = self.wake
        self.is_done = (
            False  # all that lay there when it was told to begin is acknowledged (with `until_done`)
        )
        self.troubles: dict[str, str] = {}  # what could not be read in the end, by file
        self.documents: bytes | None = None  # as they were then

    def wake(self) -> None:
        """End a pause: something is there to be sent, or this is no longer wanted. From any thread."""
        self._woken.set()
        session = self._session
        if session is not None:
            session.wake()

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self, wanted: Callable[[], bool]) -> bool:
        """Ship until it is no longer wanted, or (`until_done`) all is there. False: refused for good."""
        try:
            while wanted():
                if not self._is_at_rest:  # a heartbeat alone is no news
                    self._progress.enter(CONNECTING)
                self._session = session = self._connect()
                try:
                    self._begin(session.open(wanted))
                    self._talk(session, wanted)
                    session.close(self._settings.close_s if not self._sent else 0.0)
                    if self.is_done or not self._rest(wanted):
                        break
                except NotTaken as trouble:
                    session.close()
                    if self._is_final(trouble):
                        self._progress.enter(REFUSED, trouble)
                        self._tell(trouble.text)
                        return False
                    self._wait(trouble, wanted)
        finally:
            self.troubles, self.documents = self._source.troubles(), self._source.documents()
            self._source.stop()
            if self._progress.state != REFUSED:
                self._progress.enter(STOPPED)
        return True

    def _rest(self, wanted: Callable[[], bool]) -> bool:
        """Wait without a conversation until there is something to send; False: no longer wanted."""
        while wanted():
            self._take()
            if self._packer or self._again or self._due_documents() is not None:
                return True
            self._woken.wait(self._settings.rest_slice_s)
            self._woken.clear()
        return False

    @property
    def _is_at_rest(self) -> bool:
        """Has no record come for long, and is everything acknowledged?"""
        quiet_s = time.monotonic() - max(self._moved_at, self._begun_at)
        return quiet_s > self._settings.rest_s and not (self._sent or self._again or self._packer)

    def _is_final(self, trouble: NotTaken) -> bool:
        if trouble.reason in _NEEDS_MENDING:
            return self._settings.until_done
        return trouble.is_final

    def _wait(self, trouble: NotTaken, wanted: Callable[[], bool]) -> None:
        least_s = trouble.retry_after_s
        if trouble.reason == messages.UNAUTHORIZED:
            least_s = max(least_s or 0.0, _SLOW_S)
        elif trouble.reason == messages.WRONG_PROTOCOL and self._backoff.is_at_most:
            least_s = max(
                least_s or 0.0, _SLOW_S
            )  # a proxy that starts answers nonsense, too, but not for long
        end = time.monotonic() + self._backoff.next(least_s)
        self._progress.next_try = end
        self._progress.enter(WAITING, trouble)
        self._tell(trouble.text)
        while wanted() and (left := end - time.monotonic()) > 0:
            self._woken.wait(min(self._settings.slice_s, left))
            self._woken.clear()

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        if self._say is not None and now - self._said[1] >= _SAY_EVERY_S:
            self._said = text, now
            self._say(text)

    # ---- a conversation begins --------------------------------------------------------------------------------

    def _begin(self, welcome: Welcome) -> None:
        progress = self._progress
        # a store that was set back is another one, whatever it is called
        is_other = welcome.collector != self._collector or progress.is_beyond(welcome.held)
        self._collector = progress.collector = welcome.collector
        progress.connections += 1
        progress.held(welcome.held, is_other=is_other)
        progress.documents_acked = self._documents_known = welcome.documents_digest
        self._revision_there = welcome.documents_revision
        self._again.extendleft(sent.parcel for sent in reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0
        if is_other:
            self._again.clear()
            self._packer = Packer(self._settings.parcel_points, self._settings.parcel_bytes)
            self._source.start(welcome.held)
            self._missing_told_for = self._asked = None
            self._is_enough = False
            self._begun_at = time.monotonic()
        else:
            self._again = deque(
                left for parcel in self._again if (left := self._unheld(parcel, welcome.held)) is not None
            )

    def _unheld(self, parcel: Parcel, held: Mapping[bytes, HeldStream]) -> Parcel | None:
        """Return the part of a parcel under way that the collector lacks; documents are sent anew."""
        nothing = HeldStream()
        batches = []
        for item in parcel.batches:
            columns = unseen_part(item.columns, held.get(item.stream, nothing).stored)
            self._progress.found(item, columns)
            if columns is not None:
                batches.append(item._replace(columns=columns))
        if not (batches or parcel.holes):
            return None
        return Parcel(0, batches, parcel.holes)

    # ---- and goes on ---------------------------------------------------------------------------------------------

    def _talk(self, session: Session, wanted: Callable[[], bool]) -> None:
        while wanted():
            self._send(session)
            if self._settings.until_done and self._has_all_acked():
                self.is_done = True
                return
            self._progress.enter(SHIPPING if self._sent or self._packer else IDLE)
            if self._is_at_rest:
                return
            for answer in session.poll(self._pause_s(session)):
                if isinstance(answer, Ack):
                    self._acked(answer.upto)
                else:
                    self._refused(answer)
            session.keep_alive()

    def _pause_s(self, session: Session) -> float:
        """Return the wait for an answer before the next look; waits itself where a disk may have something sooner."""
        settings = self._settings
        if not session.has_room or self._sent_bytes >= settings.most_bytes:
            return settings.idle_s
        if self._packer:
            left = self._sent_at + settings.flush_s - time.monotonic()
            return 0.0 if self._packer.is_full else max(0.0, min(settings.flush_s, left))
        if not self._sent and self._source.is_one_disk:
            self._source.wait(settings.flush_s)
            return 0.0
        is_quiet = time.monotonic() - self._moved_at > _QUIET_S
        return settings.idle_s if is_quiet else settings.flush_s

    def _send(self, session: Session) -> None:
        settings = self._settings
        while session.has_room and self._sent_bytes < settings.most_bytes:
            documents = None if self._again else self._due_documents()
            if self._again:
                parcel: Parcel | None = self._again.popleft()
            else:
                parcel = None if documents is not None and self._is_apart else self._packed()
            if parcel is None:
                if documents is None:
                    return
                parcel = Parcel(0)
            self._sent_at = time.monotonic()
            parcel.documents = documents
            said = self._digest_of(documents)
            if said:
                self._documents_at = self._sent_at
            is_sent = session.send(parcel)
            parcel.documents = None  # it need not be kept: newer ones are sent again
            if is_sent:
                size = sum(bytes_of(item.columns) for item in parcel.batches)
                self._sent.append(_Sent(parcel, size, said))
                self._sent_bytes += size
            elif said:
                self._documents_known = said  # try without them
                self._again.appendleft(parcel)
                self._tell(
                    "the run's documents are larger than the collector takes; its config may be incomplete there"
                )
            else:
                text = f"a record of {parcel.size_bytes} bytes is larger than the collector takes"
                self._progress.refused(parcel, NotTaken(text, messages.INVALID, is_final=True))
                self._tell(text)

    def _packed(self) -> Parcel | None:
        """The next parcel: a full one, or what there is where that waited long enough."""
        self._take()
        is_late = time.monotonic() - self._sent_at >= self._settings.flush_s
        if (
            self._packer.is_full
            or is_late
            or (self._settings.until_done and (self._is_enough or self._is_all_read))
        ):
            return self._packer.next()
        return None

    def _take(self) -> None:
        """Pack what the source has, and what is missing for good."""
        if not (self._packer.is_full or self._has_enough):
            for item in self._source.take(self._settings.parcel_bytes):
                self._packer.add(item)
                self._moved_at = time.monotonic()
        if not self._packer:
            self._add_missing()

    def _due_documents(self) -> bytes | None:
        """Return documents that the collector lacks, unless some are under way; in their own time."""
        if any(sent.documents for sent in self._sent):
            return None
        now = time.monotonic()
        if now - self._documents_at < self._settings.documents_s and not self._settings.until_done:
            return None
        documents = self._source.documents()
        digest_of = self._digest_of(documents)
        if documents is None or digest_of in (b"", self._documents_known):
            return None
        revision = revision_of(documents)
        if revision < self._revision_there:
            self._documents_known = digest_of
            self._note_outdated(
                f"outdated: the documents here are of revision {revision}, and the collector has revision "
                f"{self._revision_there} of this node: config, summary and state stay as they are there"
            )
            return None
        return documents

    def _note_outdated(self, text: str) -> None:
        """Say once that these documents are an old copy's; the records go on being sent."""
        if not self._progress.outdated:
            self._progress.outdated = text
            self._tell(text)

    def _add_missing(self) -> None:
        """Once nobody adds to this node, what was durable and lies nowhere is told as damaged."""
        documents = self._source.documents()
        if documents is None or not self._nobody_adds:
            return
        if self._digest_of(documents) == self._missing_told_for:
            return
        if self._asked is None or self._asked[0] is not documents:
            # what they say was durable by now is found when all folders are read through once more
            self._asked = documents, time.monotonic()
            self._source.hurry()
        if self._source.has_passed(self._asked[1]):
            self._missing_told_for = self._digest_of(documents)
            for gap in self._source.missing(documents, is_over=self._settings.is_over):
                self._packer.add(gap)

    def _digest_of(self, documents: bytes | None) -> bytes:
        if documents is not self._digest[0]:
            self._digest = documents, digest(documents or b"")
        return self._digest[1]

    @property
    def _nobody_adds(self) -> bool:
        """Is this node over, as far as one can know?"""
        documents = self._source.documents()
        return self._settings.is_over or (documents is not None and is_closed(documents))

    @property
    def _has_enough(self) -> bool:
        """Was everything sent that was there when `until_done` began? A node may go on being written meanwhile."""
        self._is_enough = self._is_enough or (
            self._settings.until_done and self._is_all_read and not self._nobody_adds
        )
        return self._is_enough

    @property
    def _is_all_read(self) -> bool:
        return self._source.has_passed(self._begun_at)

    def _has_all_acked(self) -> bool:
        if self._sent or self._again or self._packer or not (self._is_enough or self._is_all_read):
            return False
        documents = self._source.documents()
        is_told = self._digest_of(documents) == self._missing_told_for
        is_told = is_told or documents is None or not self._nobody_adds
        return is_told and self._due_documents() is None

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _acked(self, upto: int) -> None:
        while self._sent and self._sent[0].parcel.number <= upto:
            sent = self._sent.popleft()
            self._sent_bytes -= sent.size
            self._documents_known = sent.documents or self._documents_known
            self._progress.acked(sent.parcel, sent.documents)
            self._splitter.took(sent.parcel)
            self._backoff.reset()

    def _refused(self, trouble: NotTaken) -> None:
        """One parcel will never be taken."""
        for sent in tuple(self._sent):
            if sent.parcel.number == trouble.parcel:
                self._sent.remove(sent)
                self._sent_bytes -= sent.size
                if trouble.reason == messages.OUTDATED:
                    self._documents_known = sent.documents or self._documents_known
                    self._note_outdated(trouble.text)
                    if sent.parcel.batches or sent.parcel.holes:
                        self._again.append(sent.parcel)
                    continue
                if sent.documents and (sent.parcel.batches or sent.parcel.holes):
                    self._is_apart = True  # which of the two is not taken shows when each comes alone
                    self._again.append(sent.parcel)
                    continue
                self._documents_known = sent.documents or self._documents_known
                if parts := self._splitter.parts(sent.parcel):
                    self._again.extend(parts)
                    continue
                if sent.documents:
                    self._documents_at = time.monotonic() + _SLOW_S  # the next ones are hardly taken either
                self._progress.refused(sent.parcel, trouble)
                self._tell(trouble.text)
