"""Sessions of browsers: signed cookies, logouts and one-time codes, in all processes of one data folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logclient_backend.collector import sessions
from logclient_backend.collector.sessions import FILE, KEY, SESSION_S, Sessions
from logclient_backend.collector.store.interface import StoreError
from logclient_backend.collector.tokens import EDIT, READ, Grant, Tokens
from tools.collector import ROOT

UI = Grant("ui", frozenset((READ, EDIT)))  # no token's: a process gives it itself
PATIENCE_S = 30.0


class OtherProcess:
    """A process with the same data folder: a line with a word and a text in, a line of JSON out."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.ask("check", "")

    def ask(self, word: str, text: str) -> str:
        """The name of the grant that comes of it; empty: none does."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word} {text}\n")
        self._process.stdin.flush()
        return str(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


_OTHER = """
import json, sys
from logclient_backend.collector.sessions import Sessions
from logclient_backend.collector.tokens import Tokens
tokens = Tokens(sys.argv[1])
made = Sessions(sys.argv[1], tokens.is_valid)
for line in sys.stdin:
    word, _, text = line.strip().partition(" ")
    session = made.check(text) if word != "code" else None
    if word == "end" and session is not None:
        made.end(session)
    grant = made.take_code(text) if word == "code" else session.grant if session is not None else None
    print(json.dumps(grant.name if grant is not None else ""), flush=True)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherProcess]:
    made = OtherProcess(tmp_path)
    try:
        yield made
    finally:
        made.close()


def until(is_so: Callable[[], bool]) -> float:
    """Seconds until it is."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < PATIENCE_S
        time.sleep(0.01)
    return time.monotonic() - begun


def anew(folder: Path, tokens: Tokens | None = None) -> Sessions:
    """Return the sessions as a process that starts now has them."""
    return Sessions(str(folder), (tokens or Tokens(str(folder))).is_valid)


def granted(tokens: Tokens, name: str, *roles: str) -> Grant:
    grant = tokens.check(tokens.add(name, roles))
    assert grant is not None
    return grant


def test_session_has_the_rights_of_its_token_and_outlives_a_restart(tmp_path: Path) -> None:
    """Nothing is written for a login, and what lies in the folder is the user's alone."""
    tokens = Tokens(str(tmp_path))
    grant = granted(tokens, "alice", "read", "edit")
    made = anew(tmp_path, tokens)
    cookie, session = made.begin(grant)
    for each in (made, anew(tmp_path)):
        found = each.check(cookie)
        assert found is not None and found == session
        assert found.grant == grant and found.grant.may("edit") and not found.grant.may("control")
    assert not (tmp_path / FILE).exists()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())
    assert cookie not in repr(session) and session.id not in repr(session)


def test_what_was_not_signed_here_is_no_session(tmp_path: Path) -> None:
    """Changed, cut, of another folder, or nonsense; nothing raises."""
    tokens = Tokens(str(tmp_path))
    made = anew(tmp_path, tokens)
    cookie, _ = made.begin(granted(tokens, "alice", "read"))
    body, _, signature = cookie.partition(".")
    (tmp_path / "other").mkdir()
    foreign, _ = anew(tmp_path / "other").begin(UI)
    for wrong in (
        *(
            "",
            ".",
            "x",
            cookie[:-1],
            f"{cookie}x",
            body,
            f"{body}.",
            f".{signature}",
            f"{body[:-2]}AA.{signature}",
        ),
        *(f"{signature}.{body}", "\xff.\xff", "x" * 100_000, foreign, cookie.replace(".", ".é")),
    ):
        assert made.check(wrong) is None, wrong
    assert made.check(cookie) is not None


def test_session_ends_with_its_token_in_every_process(tmp_path: Path, other: OtherProcess) -> None:
    """Also where the name is given again."""
    tokens = Tokens(str(tmp_path))
    made = anew(tmp_path, tokens)
    cookie, _ = made.begin(granted(tokens, "alice", "read"))
    assert other.ask("check", cookie) == "alice"
    Tokens(str(tmp_path)).revoke("alice")
    Tokens(str(tmp_path)).add("alice", ["read"])
    assert until(lambda: made.check(cookie) is None) < 10
    assert until(lambda: other.ask("check", cookie) == "") < 10


def test_logout_holds_in_every_process_and_after_a_restart(tmp_path: Path, other: OtherProcess) -> None:
    """A logout ends that session alone, and a second one changes nothing."""
    tokens = Tokens(str(tmp_path))
    grant = granted(tokens, "alice", "read")
    made = anew(tmp_path, tokens)
    (first, session), (second, _) = made.begin(grant), made.begin(grant)
    assert other.ask("check", first) == "alice"
    made.end(session)
    made.end(session)
    assert made.check(first) is None, "at once"
    until(lambda: other.ask("check", first) == "")
    other.ask("end", second)
    until(lambda: made.check(second) is None)
    there = anew(tmp_path)
    assert there.check(first) is None and there.check(second) is None
    assert there.check(there.begin(grant)[0]) is not None


def test_sessions_end_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a month; a clock that is set back does not give one more time."""
    made = anew(tmp_path)
    cookie, session = made.begin(UI)
    now = time.time_ns()
    for moved_s, is_there in ((-60, False), (0, True), (SESSION_S - 60, True), (SESSION_S + 60, False)):
        at = now + int(moved_s * 1e9)
        monkeypatch.setattr(time, "time_ns", lambda at=at: at)
        assert (made.check(cookie) is not None) is is_there, moved_s
    monkeypatch.undo()
    made.end(session)
    assert len(json.loads((tmp_path / FILE).read_text())["ended"]) == 1
    monkeypatch.setattr(time, "time_ns", lambda: now + int((SESSION_S + 60) * 1e9))
    made.end(made.begin(UI)[1])
    assert len(json.loads((tmp_path / FILE).read_text())["ended"]) == 1, "the expired one is forgotten"


def test_very_many_logouts_end_all_sessions_of_who_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays small, and no session comes back by it."""
    monkeypatch.setattr(sessions, "MAX_ENDED", 4)
    tokens = Tokens(str(tmp_path))
    alice, bob = granted(tokens, "alice", "read"), granted(tokens, "bob", "read")
    made = anew(tmp_path, tokens)
    kept, (quiet, _), (ended, of_bob) = made.begin(alice)[0], made.begin(bob), made.begin(bob)
    made.end(of_bob)
    cookies = []
    for _ in range(4):
        cookie, session = made.begin(alice)
        cookies.append(cookie)
        made.end(session)
    for each in (made, anew(tmp_path)):
        assert not [cookie for cookie in (*cookies, kept, ended) if each.check(cookie) is not None]
        assert each.check(quiet) is not None
        assert each.check(each.begin(alice)[0]) is not None, "who logs in again is in"
    assert len(json.loads((tmp_path / FILE).read_text())["ended"]) == 1


def test_code_begins_one_session_in_any_process(tmp_path: Path, other: OtherProcess) -> None:
    """Once, for the rights that it was made with; it lies nowhere."""
    made = anew(tmp_path)
    first, second = made.new_code(UI), made.new_code(UI)
    assert first.encode() not in (tmp_path / FILE).read_bytes()
    assert other.ask("code", first) == "ui"
    assert other.ask("code", first) == "" and made.take_code(first) is None
    assert made.take_code(second) == UI
    assert [made.take_code(wrong) for wrong in ("", "x", second, "x" * 10_000, "\ud800")] == [None] * 5
    cookie, _ = made.begin(UI)
    assert other.ask("check", cookie) == "ui", "rights that are no token's need none"


def test_code_is_over_soon_and_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And at most so many wait."""
    tokens = Tokens(str(tmp_path))
    made = anew(tmp_path, tokens)
    old, of_token = made.new_code(UI), made.new_code(granted(tokens, "alice", "read"))
    tokens.revoke("alice")
    assert made.take_code(of_token) is None
    now = time.time_ns()
    for moved_s in (-60, sessions.CODE_S + 1):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda moved_s=moved_s: now + int(moved_s * 1e9))
            assert made.take_code(made.new_code(UI)) == UI
            found = made.take_code(old) if moved_s > 0 else None
            assert found is None
    codes = [made.new_code(UI) for _ in range(sessions.MAX_CODES + 1)]
    assert made.take_code(codes[0]) is None and made.take_code(codes[-1]) == UI


def test_key_that_is_removed_ends_all_sessions(tmp_path: Path) -> None:
    """How an administrator logs everybody out; new sessions go on with a new key."""
    made = anew(tmp_path)
    cookie, _ = made.begin(UI)
    os.unlink(tmp_path / KEY)
    until(lambda: made.check(cookie) is None)
    again, _ = made.begin(UI)
    assert made.check(again) is not None and anew(tmp_path).check(again) is not None
    assert anew(tmp_path).check(cookie) is None


@pytest.mark.parametrize(
    ("name", "content", "mode", "said"),
    [
        (KEY, b"k" * 31, 0o600, "damaged"),
        (KEY, b"k" * 32, 0o644, "other users"),
        (FILE, b"{", 0o600, "damaged"),
        (FILE, b'{"version": 1}', 0o600, "damaged"),
        (
            FILE,
            b'{"version": 1, "generation": 0, "ended": [], "voided": [], "codes": []}',
            0o660,
            "other users",
        ),
    ],
)
def test_files_that_are_damaged_or_of_others_are_not_believed(
    tmp_path: Path, name: str, content: bytes, mode: int, said: str
) -> None:
    """With a sentence that says what helps."""
    path = tmp_path / name
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(StoreError, match=f"{said}.*logs in again"):
        anew(tmp_path)
