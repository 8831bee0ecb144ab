"""Captured output, folded (case R2-18): what is left of it is what somebody would have read in a terminal."""

from __future__ import annotations

import io
import re
import time

import tqdm  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient_backend.runs.console_fold import HOLD, MAX_LINE, Fold, Line


def fold(*pieces: str | tuple[str, str]) -> list[Line]:
    """Fold pieces of standard output, or (stream, text)."""
    made, number = Fold(), 1
    done: list[Line] = []
    for seq, piece in enumerate(pieces, 1):
        stream, text = ("stdout", piece) if isinstance(piece, str) else piece
        made.feed(stream, seq, 10 * seq, number, text)
        number += text.count("\n")
        done += made.settled()
    return done + made.still_open(is_over=True)


def texts(*pieces: str | tuple[str, str]) -> list[str]:
    return [line.text for line in fold(*pieces)]


def test_lines_are_put_together_from_pieces() -> None:
    """Separators come with the piece that follows; the last line needs no end, and empty lines are lines."""
    assert texts("a", " b", "\nc", "\n\nd\n", "e") == ["a b", "c", "", "d", "e"]
    assert texts("a\r\nb\r\n") == ["a", "b"]
    found = fold("a", "\nb\n", "c")
    assert [(line.number, line.seq, line.time_ns) for line in found] == [(1, 1, 10), (2, 2, 20), (3, 3, 30)]


def test_bar_is_one_line_in_its_newest_state() -> None:
    """1,000 updates on standard error with prints in between: the prints are in order, and whole."""
    pieces: list[str | tuple[str, str]] = []
    for step in range(1000):
        pieces.append(("stderr", f"\r{step / 10:5.1f}%|{'#' * (step // 50):20}|"))
        if step % 100 == 50:
            pieces.append(f"at {step}\n")
    pieces.append(("stderr", f"\r100.0%|{'#' * 20}|"))
    assert texts(*pieces) == [f"at {step}" for step in range(50, 1000, 100)] + [f"100.0%|{'#' * 20}|"]


def test_shorter_text_overwrites_the_beginning_alone() -> None:
    """The rest of a longer line stays, as in a terminal: whoever wants it gone pads it or erases it."""
    assert texts("long text\rshort") == ["shorttext"]
    assert texts("long text\rshort    ") == ["short"]
    assert texts("long text\r\x1b[Kshort") == texts("long text\x1b[2K\rshort") == ["short"]
    assert texts("abc\b\bX") == ["aXc"]


def test_nested_bars_stay_two_lines() -> None:
    """The inner one is drawn a line below, and the cursor comes back up."""
    pieces: list[str] = ["begin\n"]
    for outer in range(20):
        pieces.append(f"\router {outer}")
        for inner in range(5):
            pieces += ["\n", f"\rinner {inner}", "\x1b[A"]
    pieces += ["\n", "\r       ", "\x1b[A", "\n", "end\n"]
    assert [text for text in texts(*pieces) if text] == ["begin", "outer 19", "end"]


def test_colours_and_titles_are_taken_away() -> None:
    """Wherever a sequence is cut in two."""
    whole = "\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1b(Bplain\x07"
    for at in range(len(whole)):
        assert texts(whole[:at], whole[at:]) == ["red link plain"], at


def test_live_display_that_redraws_lines_above_keeps_the_last_state() -> None:
    """Lines are drawn anew as rich draws tables: up, erase, again."""
    first = "a 1\nb 1\n"
    again = "\x1b[1A\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2\n"
    assert texts(first, again, again.replace("2\n", "3\n"), "end") == ["a 3", "b 3", "end"]


def test_long_line_is_cut_and_the_rest_counted() -> None:
    """A line of 1 MB, in one piece or in many."""
    for pieces in (["x" * (1 << 20)], ["x" * 1024] * 1024):
        (line, after) = fold(*pieces, "\nnext")
        assert line.text == "x" * MAX_LINE and line.cut == (1 << 20) - MAX_LINE and after.text == "next"


def test_lines_before_and_after_a_gap_are_apart() -> None:
    """A missing piece is known by its number, and joins nothing."""
    made = Fold()
    made.feed("stdout", 1, 10, 1, "before")
    made.lose(5)
    made.feed("stdout", 7, 70, 9, "after\n")
    assert [(line.text, line.lost) for line in made.still_open()] == [("before", 0), ("after", 5)]


def test_open_lines_are_said_to_be_open() -> None:
    """They are not settled, and come again."""
    made = Fold()
    made.feed("stdout", 1, 10, 1, "a\nb")
    assert not made.settled()
    assert [(line.text, line.is_open) for line in made.still_open()] == [("a", True), ("b", True)]
    made.feed("stdout", 2, 20, 2, "c\n")
    made.feed("stderr", 2 + HOLD, 90, 3, "x")
    assert [(line.text, line.is_open) for line in made.settled()] == [("a", False), ("bc", False)]
    assert [line.text for line in made.still_open(is_over=True)] == ["x"]


PRINTED = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)


@given(st.lists(PRINTED, max_size=20), st.data())
def test_plain_lines_come_out_as_they_went_in(lines: list[str], data: st.DataObject) -> None:
    """However they are cut into pieces."""
    whole = "".join(f"{line}\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = fold(*pieces)
    assert [line.text for line in found] == lines
    assert [line.number for line in found] == list(range(1, len(lines) + 1))


@given(
    st.lists(
        st.text(
            st.sampled_from("ab\n\r\b\t\x1b[];0123AKJHm\x07\x00é") | st.characters(exclude_categories=["Cs"]),
            max_size=30,
        ),
        max_size=30,
    )
)
def test_any_text_is_folded_to_lines_without_control_characters(pieces: list[str]) -> None:
    """Nothing is raised, lines are in order, and each belongs to a piece that was there."""
    found = fold(*pieces)
    assert all(not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line.text) for line in found)
    assert all(1 <= line.seq <= len(pieces) for line in found)
    assert len(found) <= 1 + sum(sum(map(piece.count, "\nHJ")) for piece in pieces)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_bars_by_tqdm_end_in_their_last_state(steps: list[int]) -> None:
    """Bars that tqdm itself draws are folded, nested or not."""
    out = io.StringIO()
    bar = tqdm.tqdm(total=sum(steps), file=out, mininterval=0, miniters=1, ascii=True, ncols=60, desc="outer")
    for step in steps:
        with tqdm.tqdm(
            total=step, file=out, mininterval=0, miniters=1, ascii=True, ncols=60, leave=False
        ) as inner:
            for _ in range(step):
                inner.update(1)
        bar.update(step)
    bar.close()
    found = [text for text in texts(*re.split("(?=\r)", out.getvalue())) if text]
    assert len(found) == 1 and found[0].startswith("outer: 100%") and f"{sum(steps)}/{sum(steps)}" in found[0]


def test_folding_takes_time_in_proportion_to_the_output() -> None:
    """30,000 pieces in a few seconds at most, also where a bar is redrawn all the time."""
    begun = time.monotonic()
    made = Fold()
    for seq in range(1, 30_001):
        made.feed("stderr", seq, seq, 1, f"\r{seq:6}/30000 [{'=' * 40}]")
    assert len(made.still_open()) == 1 and time.monotonic() - begun < 20
