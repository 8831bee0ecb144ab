"""What the tests of integrations share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patient(patient: None) -> None:
    """Most tests here start agents."""
