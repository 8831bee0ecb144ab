"""The last line: what is not at the server, and the command that really brings it there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logclient.ending import about_server

SERVER = "grpc://h:1"


@pytest.mark.parametrize("state", ["waiting", "refused"])
def test_a_deleted_run_is_brought_back_by_a_command_of_its_own(state: str) -> None:
    """A plain `sync` of it would be refused as well."""
    run: Any = SimpleNamespace(dir="/runs", id="it")
    server = {"state": state, "address": SERVER, "lag_records": 7, "error": "why"}
    said = about_server(run, {"server": server})
    assert "7 records are not" in said and "(why)" in said
    command = f"`logclient sync /runs/it --server {SERVER}"
    assert f"{command} --revive`" in said if state == "refused" else f"{command}`" in said
