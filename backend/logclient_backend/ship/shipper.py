"""The shipper: one node's records and documents to one collector, for as long as it is wanted.

`Shipper.run` is a loop in the calling thread: connect, say what is new, keep it until it is acknowledged, and after any
trouble do that again, later each time. A silent, slow, refusing, garbage-speaking or vanished collector is one case.

Two states are kept apart. `Progress.state` is that of the conversation, for whoever watches; the loop goes round it::

    state       what happens                        next
    CONNECTING  a session is opened                 welcome: SHIPPING; trouble: WAITING
    SHIPPING    something is packed or in flight    all acknowledged: IDLE; trouble: WAITING
    IDLE        nothing is there to be sent         something comes: SHIPPING; trouble: WAITING;
                                                    the conversation was closed, and a record comes: CONNECTING
    WAITING     a pause, longer each time           the next try: CONNECTING
    REFUSED     the end: a trouble was final        -
    STOPPED     the end: all is done, or no longer  -
                wanted

Where no record came for `rest_s` a try does not show as CONNECTING: a heartbeat alone is no news.

`Sender.phase` is how far the work is, over all conversations: `phase.py` draws it.

Invariants:

- a conversation in which no record came for `rest_s` is closed, and another one begins when there is something to
  send: an open one costs both sides memory, and wakes grpc's threads some fifteen times a second;
- what goes wrong becomes a sentence in `Progress`, and is said at most once a minute;
- only a refusal that is final ends it early: a deleted run, say. A token may be mended: that is tried each minute.

Does not: choose what is sent (`sender.py`), read folders (`source.py`), speak gRPC (`wire/client.py`), or decide when
everything is over (who calls it).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..wire import messages
from ..wire.client import Session
from ..wire.messages import NotTaken, Request
from .backoff import Backoff
from .phase import Phase
from .progress import CONNECTING, IDLE, REFUSED, SHIPPING, STOPPED, WAITING, Progress
from .sender import Sender
from .settings import ShipSettings
from .source import FolderSource
from .throttled_log import ThrottledLog

_SLOW_S = 60.0  # between tries where somebody has to mend something first
_NEEDS_MENDING = (messages.UNAUTHORIZED, messages.WRONG_PROTOCOL)


class Shipper:
    """One node, one collector."""

    def __init__(
        self,
        connect: Callable[[], Session],
        source: FolderSource,
        progress: Progress,
        settings: ShipSettings | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """`connect` makes a session that is not open yet, for each try anew; `log` takes lines for a log."""
        self._connect = connect
        self._source = source
        self._progress = progress
        self._settings = settings or ShipSettings()
        self._log = ThrottledLog(log)
        self.sender = Sender(source, progress, self._settings, self._log)
        self._backoff = Backoff(self._settings.first_pause_s, self._settings.most_pause_s)
        self._session: Session | None = None
        self._woken = threading.Event()
        source.on_item = self.wake
        self.on_request: Callable[[Request], None] = _ignore  # somebody asks the run to stop or to save
        self.troubles: dict[str, str] = {}  # what could not be read in the end, by file
        self.documents: bytes | None = None  # as they were then

    @property
    def is_done(self) -> bool:
        """Is all acknowledged that lay there when it was told to begin (with `until_done`)?"""
        return self.sender.phase is Phase.DONE

    def wake(self) -> None:
        """End a pause: something is there to be sent, or this is no longer wanted. From any thread."""
        self._woken.set()
        session = self._session
        if session is not None:
            session.wake()

    def run(self, wanted: Callable[[], bool]) -> bool:
        """Ship until it is no longer wanted, or (`until_done`) all is there. False: refused for good."""
        try:
            while wanted():
                if not self.sender.is_at_rest:  # a heartbeat alone is no news
                    self._progress.enter(CONNECTING)
                self._session = session = self._connect()
                try:
                    self.sender.begin(session.open(wanted))
                    self._talk(session, wanted)
                    session.close(self._settings.close_s if not self.sender.in_flight else 0.0)
                    if self.is_done or not self._rest(wanted):
                        break
                except NotTaken as trouble:
                    session.close()
                    if self._is_final(trouble):
                        self.sender.enter(Phase.REFUSED)
                        self._progress.enter(REFUSED, trouble)
                        self._log.write(trouble.text)
                        return False
                    self._wait(trouble, wanted)
        finally:
            self.troubles, self.documents = self._source.troubles(), self._source.documents()
            self._source.stop()
            if self.sender.phase is not Phase.REFUSED:
                self._progress.enter(STOPPED)
        return True

    def _talk(self, session: Session, wanted: Callable[[], bool]) -> None:
        """Send and take answers, until all is done, at rest, or no longer wanted."""
        sender = self.sender
        while wanted():
            sender.send(session)
            if self.is_done:
                return
            self._progress.enter(SHIPPING if sender.is_busy else IDLE)
            if sender.is_at_rest:
                return
            for answer in session.poll(sender.pause_s(session)):
                if isinstance(answer, NotTaken):
                    sender.refused(answer)
                elif sender.acked(answer.upto):
                    self._backoff.reset()
            while session.requests:
                self.on_request(session.requests.popleft())
            session.keep_alive()

    def _rest(self, wanted: Callable[[], bool]) -> bool:
        """Wait without a conversation until there is something to send; False: no longer wanted."""
        while wanted():
            if self.sender.has_due():
                return True
            self._woken.wait(self._settings.rest_slice_s)
            self._woken.clear()
        return False

    def _is_final(self, trouble: NotTaken) -> bool:
        if trouble.reason in _NEEDS_MENDING:
            return self._settings.until_done
        return trouble.is_final

    def _wait(self, trouble: NotTaken, wanted: Callable[[], bool]) -> None:
        least_s = trouble.retry_after_s
        if trouble.reason == messages.UNAUTHORIZED:
            least_s = max(least_s or 0.0, _SLOW_S)
        elif trouble.reason == messages.WRONG_PROTOCOL and self._backoff.is_at_most:
            # a proxy that starts answers nonsense, too, but not for long
            least_s = max(least_s or 0.0, _SLOW_S)
        end = time.monotonic() + self._backoff.next(least_s)
        self._progress.next_try = end
        self._progress.enter(WAITING, trouble)
        self._log.write(trouble.text)
        while wanted() and (left := end - time.monotonic()) > 0:
            self._woken.wait(min(self._settings.slice_s, left))
            self._woken.clear()


def _ignore(request: Request) -> None:
    pass
