"""`Tee` and the lane file behind it: the stream is the user's, and a copy of each piece is in shared memory."""

from __future__ import annotations

import io
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from logclient.guest.tee import Tee, stream_of, without_ended
from logclient.shm import layout
from logclient.shm.console_stream import ConsoleLane
from logclient.shm.side_stream import side_of
from tests.interrupts import interrupted
from tests.lanes import LaneFile

RING = 1 << 20


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ConsoleLane]:
    made = ConsoleLane(str(tmp_path), 3, {"kind": "console"}, RING)
    yield made
    made.close()
    made.let_go()


def pieces(lane: ConsoleLane) -> list[tuple[int, str, str]]:
    """(line, stream, text) of all pieces in the file."""
    found = LaneFile(lane.path).read(release=False)
    assert [record.seq for record in found] == [record.order for record in found]
    assert all(record.rank == 3 for record in found)
    return [(record.step, *item) for record in found for item in record.values.items()]


def texts(lane: ConsoleLane) -> list[str]:
    return [text for _, _, text in pieces(lane)]


def test_pieces_are_kept_with_stream_and_line(lane: ConsoleLane) -> None:
    """Separators go with what follows them; those at the end are written when the capture ends."""
    out, err = Tee(io.StringIO(), lane, 0), Tee(io.StringIO(), lane, 1)
    print("a", 1, file=out)
    print("b\nc", file=out)
    print("bad", file=err)
    print("\n", file=out, end="")
    print(file=out)
    out.write("")
    out.write("open")
    print(file=out)
    assert pieces(lane)[:3] == [(1, "stdout", "a"), (1, "stdout", " 1"), (1, "stdout", "\nb\nc")]
    lane.close()
    assert pieces(lane)[3:] == [
        (3, "stdout", "\n"), (4, "stderr", "bad"), (4, "stderr", "\n"), (5, "stdout", "\n\nopen"), (7, "stdout", "\n"),
    ]  # fmt: skip
    assert "".join(text for _, stream, text in pieces(lane) if stream == "stdout") == out.getvalue()


def test_file_is_one_of_the_console(lane: ConsoleLane) -> None:
    """Its ids are marked, and it is no lane file by its name."""
    path = Path(lane.path)
    assert (
        side_of(path.stem) == "console" and path.suffix == ".console" and path.stat().st_mode & 0o777 == 0o600
    )


def test_tee_answers_as_the_stream(lane: ConsoleLane, tmp_path: Path) -> None:
    """Whatever is asked of it."""
    with open(tmp_path / "out", "w", encoding="latin-1", errors="replace") as stream:
        tee: Any = Tee(stream, lane, 0)
        names = ("encoding", "errors", "buffer", "name", "mode", "line_buffering", "newlines", "closed")
        assert all(getattr(tee, name) == getattr(stream, name) for name in names)
        assert (
            tee.fileno() == stream.fileno()
            and tee.isatty() is False
            and tee.writable()
            and not tee.readable()
        )
        is_file = isinstance(tee, io.TextIOWrapper)
        assert is_file and repr(tee) == repr(stream) and dir(tee) == dir(stream)
        with pytest.raises(TypeError) as of_tee:
            pickle.dumps(tee)
        with pytest.raises(TypeError) as of_stream:
            pickle.dumps(stream)
        assert str(of_tee.value) == str(of_stream.value)
        tee.reconfigure(line_buffering=True)
        assert stream.line_buffering is True
        tee.mine = 7
        assert vars(stream)["mine"] == 7
        del tee.mine
        assert not hasattr(stream, "mine") and not hasattr(tee, "mine")
        refers = weakref.ref(tee)() is tee
        assert refers
        assert tee.write("é\n") == 2 and tee.flush() is None
        with pytest.raises(TypeError, match="write"):
            tee.write(b"bytes")
        with tee as same:
            assert same is tee
        assert stream.closed
        with pytest.raises(ValueError, match="closed"):
            print("late", file=tee)
    assert texts(lane) == ["é\n"] and (tmp_path / "out").read_bytes() == b"\xe9\n"


def test_lines_are_written_as_the_stream_does(lane: ConsoleLane) -> None:
    """From anything that can be iterated; what comes before a failure is kept, the rest is not."""
    stream = io.StringIO()
    tee = Tee(stream, lane, 0)

    def lines() -> Iterator[str]:
        yield "one\n"
        yield "two\n"
        raise KeyError("mine")

    tee.writelines(["zero\n"])
    with pytest.raises(KeyError):
        tee.writelines(lines())
    with pytest.raises(TypeError):
        tee.writelines(["x", 5])  # type: ignore[list-item]
    assert stream.getvalue() == "zero\none\ntwo\nx" == "".join(texts(lane))


def test_exception_of_the_stream_passes_and_nothing_is_kept(lane: ConsoleLane) -> None:
    """A broken pipe is the program's own."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "gone")

    with pytest.raises(BrokenPipeError):
        print("x", file=Tee(Broken(), lane, 0))
    assert not texts(lane)


def test_texts_that_are_no_utf8_and_of_other_types_are_kept_readable(lane: ConsoleLane) -> None:
    """Halves of surrogate pairs as escapes; a text of the user's own type as its characters."""

    class Odd(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise RuntimeError("mine")

        def encode(self, *_: object) -> bytes:
            raise RuntimeError("mine")

    tee = Tee(io.StringIO(), lane, 0)
    tee.write("name \udcff\ud800 é")
    tee.write(Odd("odd"))
    assert texts(lane) == ["name \\udcff\\ud800 é", "odd"]


def test_what_a_stream_takes_that_is_no_text_is_not_kept(lane: ConsoleLane) -> None:
    """It is the stream that decides what may be written."""

    class Takes:
        def write(self, what: object) -> str:
            return "taken"

    assert Tee(Takes(), lane, 0).write(7) == "taken"  # type: ignore[arg-type]
    assert not texts(lane)


def test_long_piece_is_cut_and_counted(lane: ConsoleLane) -> None:
    """The stream has all of it."""
    stream = io.StringIO()
    print("x" * (1 << 20), file=Tee(stream, lane, 0))
    (text,) = texts(lane)
    assert text == "x" * 65536 + "...[983,040 characters cut]\n" and len(stream.getvalue()) == (1 << 20) + 1
    assert lane.words[layout.LEFT_OUT] == 1


def test_full_ring_forgets_its_oldest_pieces_counted(tmp_path: Path) -> None:
    """The newest are there."""
    lane = ConsoleLane(str(tmp_path), None, {}, 64 << 10)
    tee = Tee(io.StringIO(), lane, 0)
    for number in range(5000):
        print(f"line {number}", file=tee)
    file = LaneFile(lane.path)
    found = file.read()
    assert file.accepted == 5000 == len(found) + file.forgotten[0] and file.forgotten[0] > 3000
    assert found[-1].values == {"stdout": "\nline 4999"} and found[-1].step == 4999
    lane.close()
    lane.let_go()


def test_ended_capture_hands_on_and_keeps_nothing(lane: ConsoleLane) -> None:
    """Somebody may hold on to the tee for ever: a handler of `logging` does."""
    stream = io.StringIO()
    tee = Tee(stream, lane, 0)
    print("kept", file=tee)
    assert without_ended(tee) is tee
    lane.close()
    print("after", file=tee)
    assert texts(lane) == ["kept", "\n"] and without_ended(tee) is stream is stream_of(tee)
    lane.let_go()
    print("later", file=tee)
    assert stream.getvalue() == "kept\nafter\nlater\n"


def test_redirection_by_contextlib_goes_past_the_copy(
    lane: ConsoleLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And ends with the tee in its place."""
    tee, inner = Tee(io.StringIO(), lane, 0), io.StringIO()
    monkeypatch.setattr(sys, "stdout", tee)
    with redirect_stdout(inner):
        print("inside")
    print("outside")
    assert inner.getvalue() == "inside\n" and texts(lane) == ["outside"]


def test_threads_lose_no_piece(lane: ConsoleLane) -> None:
    """Each thread's pieces are in order, whole, and none is missing."""
    tee, threads = Tee(io.StringIO(), lane, 0), 4
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        started = [
            threading.Thread(target=lambda name=name: [tee.write(f"{name}:{at}\n") for at in range(1500)])
            for name in range(threads)
        ]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    found = texts(lane)
    for name in range(threads):
        assert [text for text in found if text.startswith(f"{name}:")] == [
            f"{name}:{at}\n" for at in range(1500)
        ]
    assert not lane.words[layout.REFUSED]


def test_handler_that_raises_at_any_point_breaks_nothing(lane: ConsoleLane) -> None:
    """The stream has the text unless it was not reached, the pieces that follow are kept, and each is counted."""
    tee, at = Tee(io.StringIO(), lane, 0), 1
    while interrupted(tee.write, f"text {at}\n", at=at):
        tee.write(f"next {at}\n")
        assert texts(lane)[-1] == f"next {at}\n", at
        at += 1
    assert at > 10
    kept = "".join(texts(lane)).splitlines()
    assert [line for line in kept if line.startswith("next")] == [f"next {number}" for number in range(1, at)]
    assert len(kept) == len(set(kept)), "none comes twice"


def test_handler_that_prints_at_any_point_loses_nothing(lane: ConsoleLane) -> None:
    """Its piece is written by the call that it has interrupted, or before."""
    tee = Tee(io.StringIO(), lane, 0)
    at = count = 1
    while interrupted(tee.write, f"outer {count}\n", at=at, action=lambda: tee.write("inner\n")):
        at, count = at + 1, count + 1
    assert sum("inner" in text for text in texts(lane)) == count - 1 > 10
    assert sum("outer" in text for text in texts(lane)) == count
