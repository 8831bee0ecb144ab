"""A reader of the collector's stream, as a page is one: it keeps what curves and events gave it, each point once."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests

PATIENCE_S = 60.0


class Page:
    """Follows series of a collector by the rule that is documented for pages."""

    def __init__(
        self, url: str, token: str, runs: list[str], keys: list[str], *, follows_runs: bool = False
    ) -> None:
        self.url = url
        self.token = token
        self.asked = {"run": runs, "key": keys, "runs": "1" if follows_runs else ""}
        self.cursor = ""
        self.at: dict[int, int] = {}  # by series
        self.points: dict[int, list[tuple[int, Any]]] = {}  # (step, value), by series
        self.events: list[tuple[str, Any]] = []
        self.sizes: list[int] = []  # bytes of each event of points
        self.reloads = 0
        self.changed = threading.Condition()

    def ask(self, path: str, **parameters: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return requests.get(
            f"{self.url}/api/v1{path}",
            params=parameters,
            headers=headers,
            timeout=PATIENCE_S,
            **self._more(path),
        )

    def _more(self, path: str) -> dict[str, Any]:
        return {"stream": path == "/stream"}

    def load(self) -> None:
        """All series anew, with buckets of one step."""
        after = ""
        while True:
            asked = {"run": self.asked["run"], "key": self.asked["key"]}
            answer = self.ask("/curves", most=20_000, after=after, **asked).json()
            self.cursor = self.cursor or answer["cursor"]
            for curve in answer["curves"]:
                assert curve["width"] == 1
                assert not curve["count"]
                self.at[curve["series"]] = answer["at"]
                self.points[curve["series"]] = list(zip(curve["start"], curve["last"], strict=True))
            after = answer["next"]
            if not after:
                return

    def open(self) -> requests.Response:
        asked = {name: value for name, value in self.asked.items() if value}
        return self.ask("/stream", after=self.cursor, **asked)

    def follow(self, answer: requests.Response) -> str:
        """Read until the stream ends; why it did."""
        assert answer.status_code == 200, answer.text
        try:
            for name, id, data, size in parsed(answer):
                with self.changed:
                    if name:
                        self.events.append((name, data))
                        self.take(name, data, size)
                    self.cursor = id or self.cursor
                    self.changed.notify_all()
                if name == "end":
                    return str(data["reason"])
        except (requests.RequestException, AttributeError, OSError):  # closed, here or there
            pass
        return ""

    def take(self, name: str, data: Any, size: int = 0) -> None:
        if name == "points":
            self.sizes.append(size)
            for at, series, _, _, steps, offsets, values in data["groups"]:
                assert len(steps) == len(offsets)
                for number, column in zip(series, values, strict=True):
                    if at > self.at.get(number, 0):
                        self.points.setdefault(number, []).extend(zip(steps, column, strict=True))
                        self.at[number] = at
        elif name == "reload" and data["series"]:
            self.reloads += 1
            self.load()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Inside the `with` it reads in a thread."""
        answer = self.open()
        thread = threading.Thread(target=self.follow, args=[answer], daemon=True)
        thread.start()
        try:
            yield
        finally:
            cut(answer)
            thread.join(PATIENCE_S)

    def wait(self, condition: Any) -> None:
        """Until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0, (self.events[-5:], {key: len(found) for key, found in self.points.items()})
                self.changed.wait(min(left, 0.2))

    def of(self, name: str) -> list[Any]:
        """Data of all events of that name."""
        return [data for which, data in self.events if which == name]


def cut(answer: requests.Response) -> None:
    """Close its connection, also while a thread waits for something to read."""
    connection = answer.raw.connection
    if connection is not None and connection.sock is not None:
        connection.sock.shutdown(socket.SHUT_RDWR)
    answer.close()


def parsed(answer: requests.Response) -> Iterator[tuple[str, str, Any, int]]:
    """Name, id, data and bytes of each block of text/event-stream."""
    name = id = data = ""
    size = 0
    for line in answer.iter_lines(chunk_size=1):
        size += len(line) + 1
        field, _, value = line.decode().partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            id = value
        elif field == "data":
            data = value
        elif not line:
            yield name, id, json.loads(data) if data else None, size
            name = id = data = ""
            size = 0
