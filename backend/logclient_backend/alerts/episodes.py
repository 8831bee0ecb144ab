"""`Episodes`: what rules found becomes messages: each episode begins once and ends once, and not too many are sent.

Pure: the time is given. The id of an episode is made of run, kind and subject, so all nodes of a run, and a collector,
give it the same one.

Invariants:

- an episode begins with its first finding, and ends when all who found it found its end;
- an end is sent where its begin was, and nowhere else;
- per kind and in all a bucket limits begins: what is held back is counted by kind, and the next message has the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from .event import BEGIN, END, Event, Finding, RunName, event_of
from .series import MAKERS

KIND_BURST, KIND_EVERY_S = 10, 60.0  # messages of one kind: so many at once, then one in so many seconds
ALL_BURST, ALL_EVERY_S = 30, 20.0
MAX_OPEN = 500
_MAX_SOURCES = 256  # of one episode
CONFIRM_S = 300.0  # for a new detector to find what an earlier one had found
DETECTED = (*MAKERS, "straggler", "replica")  # kinds whose detectors start anew with an observer


class Bucket:
    """A rate limit: a number of messages at once, then one in `every_s` seconds."""

    __slots__ = ("_at", "_burst", "_every_s", "_left")

    def __init__(self, burst: int, every_s: float, now: float) -> None:
        self._burst, self._every_s = burst, every_s
        self._left, self._at = float(burst), now

    def has_one(self, now: float) -> bool:
        self._left, self._at = min(float(self._burst), self._left + (now - self._at) / self._every_s), now
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class _Open:
    """An episode that goes on."""

    __slots__ = ("doubted_at", "finding", "is_sent", "sources")

    def __init__(self, finding: Finding, *, is_sent: bool) -> None:
        self.finding = finding
        self.is_sent = is_sent
        self.sources = {finding.source}
        self.doubted_at: float | None = None  # since then nobody has found it again


class Episodes:
    """The episodes of one run."""

    def __init__(self, run: RunName) -> None:
        self.run = run
        self._open: dict[tuple[str, str], _Open] = {}
        self._all: Bucket | None = None
        self._kinds: dict[str, Bucket] = {}
        self.held_back: dict[str, int] = {}

    def id_of(self, finding: Finding) -> str:
        """Return the id of a finding's episode: the same on all nodes."""
        text = "\0".join((self.run.id, finding.kind, finding.subject))
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def take(self, finding: Finding, now: float) -> Event | None:
        """Return the message that a finding makes; None where its episode goes on, or it is held back."""
        at = finding.kind, finding.subject
        known = self._open.get(at)
        if finding.phase == BEGIN:
            if known is not None:
                if len(known.sources) < _MAX_SOURCES:
                    known.sources.add(finding.source)
                known.doubted_at = None
                return None
            is_sent = len(self._open) < MAX_OPEN and self._may_send(finding.kind, now)
            if len(self._open) < MAX_OPEN:
                self._open[at] = _Open(finding, is_sent=is_sent)
            return self._event(finding) if is_sent else self._held_back(finding)
        if finding.phase == END:
            if known is None:
                return None
            known.sources.discard(finding.source)
            if known.sources:
                return None
            del self._open[at]
            return self._event(finding) if known.is_sent else None
        return self._event(finding) if self._may_send(finding.kind, now) else self._held_back(finding)

    def confirm(self, finding: Finding) -> None:
        """Take a finding that an earlier observer has sent: what it had found is seen again."""
        known = self._open.get((finding.kind, finding.subject))
        if known is not None and finding.phase == BEGIN:
            known.doubted_at = None

    def expire(self, now: float) -> list[Event]:
        """End what an earlier observer had found and this one does not."""
        late = [at for at, each in self._open.items() if each.doubted_at is not None]
        over = [at for at in late if now - (self._open[at].doubted_at or now) >= CONFIRM_S]
        return [event for at in over for event in self._end(at, "is not seen any more")]

    def end_all(self, text: str, kinds: tuple[str, ...] = ()) -> list[Event]:
        """End what goes on, of these kinds or of all, and return the messages."""
        wanted = [at for at in self._open if not kinds or at[0] in kinds]
        return [event for at in wanted for event in self._end(at, text)]

    def _end(self, at: tuple[str, str], text: str) -> list[Event]:
        each = self._open.pop(at)
        begun = each.finding
        ended = Finding(begun.kind, END, text, begun.subject, begun.source, begun.key, begun.rank)
        return [self._event(ended)] if each.is_sent else []

    def saved(self) -> dict[str, Any]:
        """Return what the next observer must know."""
        return {
            "held_back": dict(self.held_back),
            "open": [
                {
                    "kind": kind,
                    "subject": subject,
                    "is_sent": each.is_sent,
                    "sources": sorted(each.sources),
                    "key": each.finding.key,
                    "rank": each.finding.rank,
                }
                for (kind, subject), each in self._open.items()
            ],
        }

    def restore(self, saved: Mapping[str, Any], now: float) -> None:
        """Go on from what `saved` returned in an earlier observer."""
        self.held_back = {str(kind): int(count) for kind, count in dict(saved.get("held_back", {})).items()}
        for each in list(saved.get("open", ()))[:MAX_OPEN]:
            kind, subject = str(each["kind"]), str(each["subject"])
            rank = each["rank"] if isinstance(each["rank"], int) else None
            finding = Finding(kind, BEGIN, "", subject, key=str(each["key"]), rank=rank)
            made = self._open[kind, subject] = _Open(finding, is_sent=bool(each["is_sent"]))
            made.sources = {str(source) for source in each["sources"]}
            made.doubted_at = now if kind in DETECTED else None

    def _may_send(self, kind: str, now: float) -> bool:
        if self._all is None:
            self._all = Bucket(ALL_BURST, ALL_EVERY_S, now)
        bucket = self._kinds.get(kind)
        if bucket is None:
            bucket = self._kinds[kind] = Bucket(KIND_BURST, KIND_EVERY_S, now)
        if not (bucket.has_one(now) and self._all.has_one(now)):
            return False
        bucket.take()
        self._all.take()
        return True

    def _held_back(self, finding: Finding) -> Event | None:
        self.held_back[finding.kind] = self.held_back.get(finding.kind, 0) + 1
        return None

    def _event(self, finding: Finding) -> Event:
        held_back, self.held_back = self.held_back, {}
        return event_of(finding, self.run, self.id_of(finding), held_back)
