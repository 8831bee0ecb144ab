"""What the tests of integrations share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patient(patient: None) -> None:
    """Most tests here start agents."""


@pytest.fixture(autouse=True)
def _no_current_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test left as the current run is none for this one."""
    monkeypatch.setattr("logclient._run", None)
