"""Pages of output: whichever way one goes through them, each line is there once, as it stands in the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient_backend.runs import console_pages
from logclient_backend.runs.console_fold import Fold, Line
from logclient_backend.runs.console_pages import Page, Pages, Row
from logclient_backend.wal.seqs import SeqSet


def everything(line: Line) -> bool:
    return True


class Output:
    """Pieces as they are stored."""

    def __init__(
        self, pieces: list[tuple[str, str]], missing: set[int] | None = None, *, is_over: bool = True
    ) -> None:
        self.rows: list[Row] = []
        number = 1
        for seq, (stream, text) in enumerate(pieces, 1):
            if seq not in (missing or ()):
                self.rows.append((seq, 10 * seq, number, stream, text))
            number += text.count("\n")
        self.read = 0
        self.pages = Pages(SeqSet([(row[0], row[0]) for row in self.rows]), self._fetch, is_over=is_over)

    def _fetch(self, first: int, most: int) -> tuple[list[Row], int]:
        found = [row for row in self.rows if row[0] >= first]
        self.read += min(most, len(found))
        return found[:most], found[most][0] if len(found) > most else 0

    def whole(self) -> list[Line]:
        made, before, found = Fold(), 0, []
        for seq, time_ns, number, stream, text in self.rows:
            if seq > before + 1:
                made.lose(seq - before - 1)
            before = seq
            made.feed(stream, seq, time_ns, number, text)
            found += made.settled()
        return sorted(found + made.still_open(is_over=True))

    def forwards(self, limit: int) -> list[Line]:
        found, cursor = [], 0
        while True:
            page = self.pages.after(cursor, limit, everything)
            found += page.lines
            if page.is_all:
                return found
            assert page.next > cursor
            cursor = page.next

    def backwards(self, limit: int) -> list[Line]:
        found: list[Line] = []
        page = self.pages.before(None, limit, everything)
        while True:
            found = page.lines + found
            if not page.previous:
                return found
            page = self.pages.before(page.previous, limit, everything)


def prints(count: int) -> list[tuple[str, str]]:
    return [("stdout", f"line {number}\n") for number in range(1, count + 1)]


def bar(count: int) -> list[tuple[str, str]]:
    return [("stderr", f"\r{number:6} of {count}") for number in range(1, count + 1)]


@pytest.mark.parametrize("limit", [3, 70, 1000])
def test_pages_from_either_end_have_each_line_once(limit: int) -> None:
    """Prints, a bar among them, and more prints."""
    mixed = [piece for pair in zip(prints(300), bar(300), strict=True) for piece in pair]
    output = Output(prints(40) + mixed + prints(40), {5, 6, 90, 400, 401, 402})
    assert output.forwards(limit) == output.backwards(limit) == output.whole()
    assert sum(line.lost for line in output.whole()) == 6


def test_last_page_reads_the_end_alone() -> None:
    """A long output is read page by page."""
    output = Output(prints(50_000))
    page = output.pages.before(None, 100, everything)
    assert [line.text for line in page.lines] == [f"line {number}" for number in range(49_901, 50_001)]
    assert page.is_all and page.next == 50_000 and output.read < 10_000


def test_search_goes_on_page_by_page_though_nothing_is_found() -> None:
    """A page is bounded, and says where the next one begins."""
    output = Output(prints(100_000))

    def is_meant(line: Line) -> bool:
        return line.text == "line 7"

    page, asked = output.pages.before(None, 10, is_meant), 1
    while not page.lines:
        assert page.previous
        page, asked = output.pages.before(page.previous, 10, is_meant), asked + 1
    assert [line.number for line in page.lines] == [7] and asked >= 2


def test_lines_that_are_open_come_again_when_they_have_changed() -> None:
    """A reader that asks with the cursor sees each change, and what it has otherwise not again."""
    output = Output([*prints(200), ("stdout", "working"), *bar(3)], is_over=False)
    page = output.pages.before(None, 30, everything)
    assert [line.text for line in page.lines if line.is_open][-2:] == ["working", "     3 of 3"]
    output = Output([*prints(200), ("stdout", "working"), *bar(3), ("stdout", " done\n")], is_over=False)
    after = output.pages.after(page.next, 100, everything)
    known = [line.text for line in page.lines if not line.is_open] + [line.text for line in after.lines]
    whole = [line.text for line in output.whole()]
    assert known == whole[-len(known) :] and known[-2:] == ["     3 of 3", "working done"]


def test_long_page_is_cut_by_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of lines was asked for."""
    monkeypatch.setattr(console_pages, "MAX_CHARACTERS", 1000)
    output = Output(prints(500))
    assert len(output.pages.after(0, 2000, everything).lines) < 200
    assert len(output.pages.before(None, 2000, everything).lines) < 200
    assert output.forwards(2000) == output.backwards(2000) == output.whole()


def test_no_output_is_an_empty_page() -> None:
    """And the one behind it."""
    pages = Output([]).pages
    assert pages.before(None, 10, everything) == Page([], 0, 0, is_all=True)
    assert pages.after(0, 10, everything) == Page([], 0, 0, is_all=True)


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]), st.sampled_from(["a", "b\n", "\rc", "\n", "d\ne\n", "\x1b[A"])
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(PIECES, st.integers(1, 9))
def test_short_outputs_are_the_same_by_pages(pieces: list[tuple[str, str]], limit: int) -> None:
    """Whatever was printed: all of it lies within the margin."""
    output = Output(pieces)
    assert output.forwards(limit) == output.backwards(limit) == output.whole()
