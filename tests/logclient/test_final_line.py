"""The last line: what is not at the server, and the command that really brings it there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logclient import NullRun, Status
from logclient.session.final_line import about_server, final_line

SERVER = "grpc://h:1"


def status_with(**parts: Any) -> Status:
    """A status in which only these parts matter."""
    whole: dict[str, Any] = {**NullRun("p", {}, ()).status()}
    for name, part in parts.items():
        whole[name] = {**whole[name], **part} if isinstance(part, dict) else part
    return whole  # type: ignore[return-value]


@pytest.mark.parametrize("state", ["waiting", "refused"])
def test_a_deleted_run_is_brought_back_by_a_command_of_its_own(state: str) -> None:
    """A plain `sync` of it would be refused as well."""
    session: Any = SimpleNamespace(dir="/runs", run_id="it")
    server = {"state": state, "address": SERVER, "lag_records": 7, "refused_records": 0, "error": "why"}
    said = about_server(session, status_with(server=server))
    assert "7 records are not" in said and "(why)" in said
    command = f"`logclient sync /runs/it --server {SERVER}"
    assert f"{command} --revive`" in said if state == "refused" else f"{command}`" in said


@pytest.mark.parametrize(("refused", "late"), [(7, 0), (3, 4)])
def test_records_that_the_server_refused_are_not_promised_to_get_there(refused: int, late: int) -> None:
    """Sent again they would be refused again: `sync` is for the others only."""
    session: Any = SimpleNamespace(dir="/runs", run_id="it")
    server = {
        "state": "idle",
        "address": SERVER,
        "lag_records": 7,
        "refused_records": refused,
        "error": "in any words",
        "reason": "too odd",
    }
    said = about_server(session, status_with(server=server))
    assert (
        f"{refused} records are not at {SERVER}, which refuses them (too odd): they stay in the run folder"
        in said
    )
    assert ("sync" in said) == bool(late)
    assert (f"{late} records are not yet at" in said) == bool(late)


@pytest.mark.parametrize(
    ("durable", "awaited", "said"),
    [
        (4, 0, "6 records are not on disk in /runs after 3.0 s (No space left on device); the agent"),
        (4, 2, "4 records are not on disk in /runs"),
        (8, 2, "2 records wait for values of a device after 3.0 s"),
        (
            10,
            0,
            "what was said last of config, summary or state is not on disk in /runs after 3.0 s (No space",
        ),
    ],
)
@pytest.mark.parametrize("trouble", ["", "no interpreter can run it"])
def test_what_is_missing_is_told_with_its_cause(durable: int, awaited: int, said: str, trouble: str) -> None:
    """Records, those that wait for a device, or documents alone; and who works on it, if anybody does."""
    status = status_with(
        accepted=10,
        durable=durable,
        agent={"disk_error": "No space left on device"},
        device={"in_flight": awaited},
    )
    session: Any = SimpleNamespace(dir="/runs", run_id="it")
    line = final_line(session, status, {}, False, 3.0, trouble)
    assert (said in line) or trouble
    assert (" 0 records" in line, "not on disk" in line) == (False, durable + awaited < 10 or durable == 10)
    if "not on disk" in line:
        assert ("the agent goes on" in line) == (not trouble)
        assert (f"nobody works on it ({trouble}): `logclient recover`" in line) == bool(trouble)
