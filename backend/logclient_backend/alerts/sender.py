"""Delivery as a process of its own, for a program with many threads, which must not fork: a collector.

`python -m logclient_backend send-alerts FILE` reads one JSON object a line: `{"number": n, "event": {...}}`, and before
those of an earlier process, `{"restore": report, "events": [...]}`. It writes a report (`Delivery.report`, and `rules`
of the file) a line whenever it has changed. It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from .delivery import Delivery
from .event import of_document
from .webhook import prepare

_MAX_PAUSE_S = 2.0
_LAST_S = 10.0  # for what is queued, once no more comes
_MAX_LINE = 1 << 20


def main(path: str) -> int:
    """Be the process that sends."""
    prepare()
    delivery = Delivery(path)
    lines, is_open, written = b"", True, ""
    while is_open and b"\n" not in lines:  # the first line comes before anything is sent
        part = os.read(0, 1 << 16)
        is_open, lines = bool(part), lines + part
    *whole, lines = lines.split(b"\n")
    _offer(delivery, whole)
    os.set_blocking(0, False)
    until = float("inf")
    while is_open or (not delivery.is_idle and time.monotonic() < until):
        if is_open:
            select.select([0], [], [], min(_MAX_PAUSE_S, delivery.due_in_s))
            try:
                part = os.read(0, 1 << 16)
            except BlockingIOError:
                pass
            else:
                is_open = bool(part)
                *whole, lines = (lines + part).split(b"\n")
                _offer(delivery, whole)
                lines = lines[:_MAX_LINE]
            until = time.monotonic() + _LAST_S
        else:
            time.sleep(min(0.05, delivery.due_in_s))
        delivery.look()
        report = json.dumps(delivery.report() | {"rules": delivery.file.targets.rules})
        if report != written:
            written = report
            try:
                sys.stdout.write(f"{report}\n")
                sys.stdout.flush()
            except OSError:
                is_open, until = False, time.monotonic() + _LAST_S
    delivery.close()
    return 0


def _offer(delivery: Delivery, lines: list[bytes]) -> None:
    for line in lines:
        try:
            given = json.loads(line)
            if "restore" in given:
                events = [(int(each["number"]), of_document(each["event"])) for each in given["events"]]
                delivery.restore(given["restore"], events)
            else:
                delivery.offer(int(given["number"]), of_document(given["event"]))
        except (ValueError, LookupError, TypeError):
            continue
