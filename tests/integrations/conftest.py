"""What the tests of integrations share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _patient(patient: None) -> None:
    """Most tests here start agents."""


@pytest.fixture(autouse=True)
def _no_current_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier test left as the current run is none for this one."""
    monkeypatch.setattr("logclient._run", None)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Of torch: the models are small, the machine is shared."""
    import torch  # not for those who need it not

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
