"""A whole collector inside the test's process, and a client of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.limits import Limits
from logclient_backend.collector.serve import Collector, Settings
from logclient_backend.wire.address import Address
from logclient_backend.wire.messages import NotTaken
from tests.ingest import Client


class Inside:
    """A collector, its administrator's token and its log."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.log = io.StringIO()
        made = {
            "listen": Address("127.0.0.1", 0),
            "http": Address("127.0.0.1", 0),
            "version": "0",
            **settings,
        }
        self.collector = Collector(Settings(data=folders.make(str(folder)), **made), EventLog(self.log))
        self.token = self.collector.admin_token
        self.clients: list[Client] = []
        self.is_stopped = False

    @property
    def store(self) -> Any:
        return self.collector.store

    def client(self, token: str | None = None, **hello: Any) -> Client:
        made = Client(self.collector.address, self.token if token is None else token, **hello)
        self.clients.append(made)
        return made

    def refused(self, token: str | None = None, **hello: Any) -> NotTaken:
        """Why a conversation is not begun."""
        with pytest.raises(NotTaken) as caught:
            self.client(token, **hello)
        return caught.value

    def value(self, name: str, **labels: str) -> float:
        return self.collector.metrics.value(name, **labels)

    def stop(self) -> None:
        if self.is_stopped:
            return
        self.is_stopped = True
        for client in self.clients:
            client.close()
        assert self.collector.stop(60.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Inside]]:
    """Starts a collector: limits by name, and other settings as `serve.Settings` has them."""
    running: list[Inside] = []

    def begin(folder: str = "data", *, settings: dict[str, Any] | None = None, **limits: Any) -> Inside:
        given = settings or {}
        made = Inside(tmp_path / folder, **given, limits=Limits(**{"web_processes": 0, **limits}))
        running.append(made)
        return made

    try:
        yield begin
    finally:
        for each in running:
            each.stop()
