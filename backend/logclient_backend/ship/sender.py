"""The sender: what one collector lacks of one node, from the folders until it is acknowledged.

In the shipper's thread, which opens the conversations and asks when to go on. The order is: parcels that broke with a
conversation, then what the source has, then what is missing for good; documents travel with either. The newest report
of the node is sent once in each conversation, beside them: it is not acknowledged.

Invariants:

- what was given by the source is kept here until it is acknowledged, or refused for good and counted;
- memory is bounded: by what may be in flight, by one parcel being packed, and by what the source holds.

Does not: connect, pause, or try again (`shipper.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from logclient.shm.side_stream import SYSTEM, side_of

from ..runs.edits import Edits
from ..wal.dedup import new_part
from ..wire import messages
from ..wire.client import Session
from ..wire.messages import HeldStream, NotTaken, Parcel, Welcome
from ..wire.node_report import NodeReport
from .bisect import Splitter
from .documents import DocumentUpload, Version
from .edits import EditUpload
from .in_flight import InFlight
from .loss_check import LossCheck
from .parcels import Packer
from .phase import NEXT, Phase
from .progress import Progress
from .settings import ShipSettings
from .source import FolderSource
from .throttled_log import ThrottledLog

_QUIET_S = 10.0  # nothing came for so long: look less often


class Sender:
    """One node, one collector; `phase` says what is left to do (`phase.py` draws it)."""

    def __init__(
        self, source: FolderSource, progress: Progress, settings: ShipSettings, log: ThrottledLog
    ) -> None:
        self.phase = Phase.NEW
        self.in_flight = InFlight()
        self._source = source
        self._progress = progress
        self._settings = settings
        self._log = log
        self._documents = DocumentUpload(source, settings, self._note_outdated)
        self._edits = EditUpload(source, self._note_untaken)
        self._losses = LossCheck(source, self._documents, is_over=settings.is_over)
        self._packer = Packer(settings.parcel_points, settings.parcel_bytes)
        self._resend: deque[Parcel] = deque()  # in flight when a conversation broke, or refused in part
        self._splitter = Splitter()
        self._welcomed_at = 0.0  # by the collector that answered last, for the first time
        self._moved_at = 0.0  # when the source gave something last
        self._sent_at = 0.0
        self.newest_report: Callable[[], NodeReport | None] = _no_report  # the same object until it changes
        self._sent_report: NodeReport | None = None  # in this conversation

    def enter(self, phase: Phase) -> None:
        """Go on to a phase that may follow this one."""
        assert phase in NEXT[self.phase], (self.phase, phase)
        self.phase = phase

    # ---- a conversation begins --------------------------------------------------------------------------------

    def begin(self, welcome: Welcome) -> None:
        """Take over what the collector has: send again what it lacks of that in flight, or all to another one."""
        progress = self._progress
        # a store that was set back is another one, whatever it is called
        is_other = welcome.collector != progress.collector or progress.is_beyond(welcome.held)
        progress.collector = welcome.collector
        progress.web = welcome.public_url, welcome.http_address
        progress.connections += 1
        progress.held(welcome.held, is_other=is_other)
        progress.documents_acked = welcome.documents_digest
        self._documents.welcomed(welcome)
        self._edits.welcomed(welcome, is_other=is_other)
        self._sent_report = None
        self._resend.extendleft(reversed(self.in_flight.take_back()))
        if is_other or self.phase is Phase.NEW:
            self._start(welcome)
        else:
            lacking = (self._lacking(parcel, welcome.held) for parcel in self._resend)
            self._resend = deque(parcel for parcel in lacking if parcel is not None)

    def _start(self, welcome: Welcome) -> None:
        """From the beginning, for a collector of which nothing is known but what it has."""
        self._resend.clear()
        self._packer = Packer(self._settings.parcel_points, self._settings.parcel_bytes)
        self._source.start(welcome.held)
        self._losses.restart()
        self._welcomed_at = time.monotonic()
        self.enter(Phase.CATCHING_UP if self._settings.until_done else Phase.STREAMING)

    def _lacking(self, parcel: Parcel, held: Mapping[bytes, HeldStream]) -> Parcel | None:
        """Return the part of a parcel that the collector lacks; its documents are sent anew."""
        nothing = HeldStream()
        batches = []
        for item in parcel.batches:
            left = new_part(item, held.get(item.stream, nothing).stored)
            self._progress.found(item, left)
            if left is not None:
                batches.append(left)
        if not (batches or parcel.holes):
            return None
        return Parcel(0, batches, parcel.holes)

    # ---- and goes on ------------------------------------------------------------------------------------------

    def send(self, session: Session) -> None:
        """Send what is due, as far as there is room; after that it may be DONE."""
        report = self.newest_report()
        if report is not None and report is not self._sent_report:
            session.report(report)
            self._sent_report = report
        if session.has_room and (edits := self._due_edits()) is not None:
            self._send_edits(session, edits)
        while session.has_room and self.in_flight.size < self._settings.in_flight_bytes:
            version = None if self._resend else self._due_documents()
            if self._resend:
                parcel: Parcel | None = self._resend.popleft()
            else:
                parcel = None if version is not None and self._documents.is_apart else self._packed()
            if parcel is None and version is None:
                break
            self._send_one(session, parcel or Parcel(0), version)
        if self._is_all_acked:
            self.enter(Phase.DONE)

    def _send_one(self, session: Session, parcel: Parcel, version: Version | None) -> None:
        self._sent_at = time.monotonic()
        if version is not None:
            parcel.documents = version.content
            self._documents.sent()
        is_sent = session.send(parcel)
        parcel.documents = None  # it need not be kept: newer ones are sent again
        if is_sent:
            self.in_flight.add(parcel, version.digest if version is not None else b"")
        elif version is not None:
            self._documents.settle(version.digest)  # try without them
            self._resend.appendleft(parcel)
            self._log.write(
                "the run's documents are larger than the collector takes; its config may be incomplete there"
            )
        else:
            text = f"a record of {parcel.size_bytes} bytes is larger than the collector takes"
            self._progress.refused(parcel, NotTaken(text, messages.INVALID, is_final=True))
            self._log.write(text)

    def _send_edits(self, session: Session, edits: Edits) -> None:
        parcel = Parcel(0, edits=edits.dumps())
        is_sent = session.send(parcel)
        parcel.edits = None
        if is_sent:
            self.in_flight.add(parcel, b"", edits)
        else:
            self._edits.settle(edits)
            self._note_untaken("the edits of the run are larger than the collector takes")

    def pause_s(self, session: Session) -> float:
        """Return the wait for an answer before the next look; waits itself where a disk may have something sooner."""
        settings = self._settings
        if not session.has_room or self.in_flight.size >= settings.in_flight_bytes:
            return settings.idle_s
        if self._packer:
            left = self._sent_at + settings.flush_s - time.monotonic()
            return 0.0 if self._packer.is_full else max(0.0, min(settings.flush_s, left))
        if not self.in_flight and self._source.is_one_disk:
            self._source.wait(settings.flush_s)
            return 0.0
        is_quiet = time.monotonic() - self._moved_at > _QUIET_S
        return settings.idle_s if is_quiet else settings.flush_s

    def has_due(self) -> bool:
        """Look without a conversation: is there something to send?"""
        self._take()
        if bool(self._packer or self._resend) or self._due_documents() is not None:
            return True
        if self._due_edits() is not None:
            return True
        newest, sent = self.newest_report(), self._sent_report
        if newest is None or sent is None:
            return newest is not sent
        # one that has more of the same waits for the next conversation: the heartbeat's, at the latest
        return (newest.kind, bool(newest.packed)) != (sent.kind, bool(sent.packed))

    @property
    def is_busy(self) -> bool:
        """Is something packed, or in flight?"""
        return bool(self.in_flight or self._packer)

    @property
    def is_at_rest(self) -> bool:
        """Has no record come for long, and is everything acknowledged?"""
        quiet_s = time.monotonic() - max(self._moved_at, self._welcomed_at)
        return quiet_s > self._settings.rest_s and not (self.is_busy or self._resend)

    @property
    def _is_all_read(self) -> bool:
        """Was all taken from the source that is to be sent before the end?"""
        if self.phase is Phase.CATCHING_UP:
            return self._source.has_passed(self._welcomed_at)
        return self.phase is Phase.DRAINING

    @property
    def _is_all_acked(self) -> bool:
        """Is all there, at the end that `until_done` asks for?"""
        if self.is_busy or self._resend or not self._is_all_read:
            return False
        return self._losses.is_complete and self._due_documents() is None and self._due_edits() is None

    def _due_documents(self) -> Version | None:
        return None if self.in_flight.has_documents else self._documents.due()

    def _due_edits(self) -> Edits | None:
        return None if self.in_flight.has_edits else self._edits.due()

    def _packed(self) -> Parcel | None:
        """Return the next parcel: a full one, or what there is where that waited long enough, or nothing follows."""
        self._take()
        is_late = time.monotonic() - self._sent_at >= self._settings.flush_s
        return self._packer.next() if self._packer.is_full or is_late or self._is_all_read else None

    def _take(self) -> None:
        """Pack what the source has, and what is missing for good."""
        if not self._packer.is_full:
            if self.phase is Phase.DRAINING and self._documents.is_node_over:
                self.enter(Phase.CATCHING_UP)  # it has an end now, and with it losses to tell
            if self.phase is Phase.CATCHING_UP and self._is_all_read and not self._documents.is_node_over:
                self.enter(Phase.DRAINING)
            if self.phase is not Phase.DRAINING:
                for item in self._source.take(self._settings.parcel_bytes):
                    self._packer.add(item)
                    if side_of(item.stream) != SYSTEM:  # those come at rest, too, beside a heartbeat
                        self._moved_at = time.monotonic()
        if not self._packer:
            for gap in self._losses.gaps():
                self._packer.add(gap)

    # ---- answers ----------------------------------------------------------------------------------------------

    def acked(self, upto: int) -> bool:
        """Let go of all parcels up to that number; False: there was none."""
        found = self.in_flight.acked(upto)
        for sent in found:
            self._documents.settle(sent.documents)
            if sent.edits is not None:
                self._edits.settle(sent.edits)
            self._progress.acked(sent.parcel, sent.documents)
            self._splitter.took(sent.parcel)
        return bool(found)

    def refused(self, trouble: NotTaken) -> None:
        """Send one parcel again in parts, or count it: as it is it will never be taken."""
        sent = self.in_flight.refused(trouble.parcel)
        if sent is None:
            return
        has_records = bool(sent.parcel.batches or sent.parcel.holes)
        if sent.edits is not None:
            self._edits.settle(sent.edits)
            self._note_untaken(trouble.text)
        elif trouble.reason == messages.OUTDATED:
            self._documents.settle(sent.documents)
            self._note_outdated(trouble.text)
            if has_records:
                self._resend.append(sent.parcel)
        elif sent.documents and has_records:
            self._documents.is_apart = True  # which of the two is not taken shows when each comes alone
            self._resend.append(sent.parcel)
        elif parts := self._splitter.parts(sent.parcel):
            self._resend.extend(parts)
        else:
            if sent.documents:
                self._documents.settle(sent.documents)
                self._documents.refused()
            self._progress.refused(sent.parcel, trouble)
            self._log.write(trouble.text)

    def _note_untaken(self, text: str) -> None:
        """Say once why the edits of the run stay here."""
        if self._progress.edits_refusal != text:
            self._progress.edits_refusal = text
            self._log.write(text)

    def _note_outdated(self, text: str) -> None:
        """Say once that these documents are an old copy's; the records go on being sent."""
        if not self._progress.outdated:
            self._progress.outdated = text
            self._log.write(text)


def _no_report() -> NodeReport | None:
    return None
