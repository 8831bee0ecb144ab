"""Tokens: who may do what, and that nobody learns one from the file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from logclient.errors import BadArgument, Unsupported
from logclient_backend.collector import tokens
from logclient_backend.collector.store.interface import StoreError
from logclient_backend.collector.tokens import Tokens


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at before every answer."""
    monkeypatch.setattr(tokens, "LOOK_S", -1.0)


def test_roles_are_what_was_given_and_admin_is_all(tmp_path: Path) -> None:
    """Each token may do what it was made for."""
    made = Tokens(str(tmp_path))
    writer, both, admin = (
        made.add("writer", ["ingest"]),
        made.add("login", ["ingest", "read"]),
        made.add("root", ["admin"]),
    )
    found = {name: made.check(token) for name, token in (("w", writer), ("b", both), ("a", admin))}
    may = {
        name: [role for role in tokens.ROLES if grant and grant.may(role)] for name, grant in found.items()
    }
    assert may == {
        "w": ["ingest"],
        "b": ["ingest", "read"],
        "a": ["ingest", "read", "edit", "control", "admin"],
    }
    assert found["b"] is not None and found["b"].role == "ingest,read"


@pytest.mark.parametrize("wrong", [None, "", "lct_", "x" * 100, "x" * 100_000, "\ud800", "lct_\0"])
def test_what_is_no_token_may_nothing(tmp_path: Path, wrong: str | None) -> None:
    """Nothing raises, whatever is sent."""
    made = Tokens(str(tmp_path))
    made.add("root", ["admin"])
    assert made.check(wrong) is None


def test_nearly_a_token_is_none(tmp_path: Path) -> None:
    """One character off, or one more."""
    made = Tokens(str(tmp_path))
    token = made.add("root", ["admin"])
    assert made.check(token) is not None
    for wrong in (token[:-1], token + "A", token[:-1] + ("A" if token[-1] != "A" else "B"), token.upper()):
        assert made.check(wrong) is None


def test_file_holds_no_token_and_is_the_owners_alone(tmp_path: Path) -> None:
    """A backup or a glance at it gives nobody access."""
    token = Tokens(str(tmp_path)).add("root", ["admin"])
    path = tmp_path / "tokens.json"
    assert token not in path.read_text() and token.removeprefix("lct_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["tokens.json", "tokens.lock"]


def test_running_collector_sees_what_the_command_changed(tmp_path: Path, at_once: None) -> None:
    """Added and revoked by another process; a conversation that lasts is told by `is_valid`."""
    collector, command = Tokens(str(tmp_path)), Tokens(str(tmp_path))
    token = command.add("job", ["ingest"])
    grant = collector.check(token)
    assert grant is not None and collector.is_valid(grant)
    assert command.revoke("job") and not command.revoke("job")
    assert collector.check(token) is None and not collector.is_valid(grant)


def test_revoked_name_given_again_is_another_grant(tmp_path: Path, at_once: None) -> None:
    """What was open under the old one does not go on."""
    made = Tokens(str(tmp_path))
    old = made.check(made.add("job", ["ingest"]))
    made.revoke("job")
    made.add("job", ["ingest"])
    assert old is not None and not made.is_valid(old)


def test_two_editors_lose_nothing(tmp_path: Path) -> None:
    """Each sees what the other wrote."""
    a, b = Tokens(str(tmp_path)), Tokens(str(tmp_path))
    for number in range(5):
        a.add(f"a{number}", ["read"])
        b.add(f"b{number}", ["read"])
    assert len(Tokens(str(tmp_path)).list()) == 10


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "ä", "a\n", "a\0"])
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    """Names are shown in logs and tables."""
    with pytest.raises(BadArgument):
        Tokens(str(tmp_path)).add(name, ["read"])


def test_a_name_is_given_once_and_roles_are_known(tmp_path: Path) -> None:
    """Otherwise it would not be clear what is revoked."""
    made = Tokens(str(tmp_path))
    made.add("a", ["read"])
    with pytest.raises(BadArgument, match="already"):
        made.add("a", ["admin"])
    for roles in ([], ["write"], ["read", "root"]):
        with pytest.raises(BadArgument, match="expected some of"):
            made.add("b", roles)


def test_file_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    """Somebody could have put a token of theirs in."""
    Tokens(str(tmp_path)).add("root", ["admin"])
    (tmp_path / "tokens.json").chmod(0o620)
    with pytest.raises(StoreError, match="not believed"):
        Tokens(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"version": 1, "tokens": [{}]}', '{"version": 1, "tokens": 5}', "[" * 100_000],
)
def test_damaged_file_is_an_error_and_lets_nobody_in(tmp_path: Path, content: str) -> None:
    """It is never taken for an empty one."""
    (tmp_path / "tokens.json").write_text(content)
    (tmp_path / "tokens.json").chmod(0o600)
    with pytest.raises(StoreError, match="damaged"):
        Tokens(str(tmp_path))


def test_newer_file_is_left_alone(tmp_path: Path) -> None:
    """A newer version knows more."""
    (tmp_path / "tokens.json").write_text(json.dumps({"version": 2, "tokens": []}))
    with pytest.raises(Unsupported):
        Tokens(str(tmp_path))


def test_without_auth_everybody_may(tmp_path: Path) -> None:
    """The explicit flag."""
    made = Tokens(str(tmp_path), no_auth=True)
    grant = made.check(None)
    assert grant is not None and grant.may("admin") and made.is_open and made.is_valid(grant)


def test_new_token_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However seldom the file is looked at otherwise."""
    monkeypatch.setattr(tokens, "LOOK_S", 3600.0)
    collector = Tokens(str(tmp_path))
    assert collector.check("lct_x") is None
    assert collector.check(Tokens(str(tmp_path)).add("job", ["ingest"])) is not None
