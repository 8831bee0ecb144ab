"""Sections: the part of a step that this process is in, since when, and its time in each part.

Runs in the training process, in the thread that used a section first; in every other thread a section does nothing.
To enter or leave one is a clock read and three stores into the lane file, where `logclient why` reads them.

Invariants:

- between the look at the fork mark and the last store stands no call: neither a signal handler nor another thread
  comes between, so the fields here and the words there always belong together, and a forked child writes to no word
  of its parent's;
- time is in one section at a time: that of an inner section is not the outer one's. A reader that comes between two
  stores finds less time than there was, never more;
- a section that is left while it is not the current one ends those that were entered inside it and never left (a
  generator that was given up), and does nothing where it was given up itself;
- before `attach` and after `detach` the stores go to memory that nobody reads.

Does not: raise, wait, or write a record.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic_ns

from ..encode.about import short
from ..guest import foreign
from ..shm import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from ..shm.ring import Mark
    from .session import Session

_SECTION, _SINCE = layout.SECTION, layout.SECTION_SINCE  # a look-up less, each time
_NAME_BYTES = 8 * layout.SECTION_NAME_WORDS
_MAX_KNOWN = 4 * layout.MAX_SECTIONS  # names, those that share a section included
_NOWHERE = memoryview(bytearray(layout.KEYS_OFFSET)).cast("Q")
_ANY_PROCESS: Mark = b"\1"


class Section:
    """One section of this process: a context manager that may be entered again and again, also inside itself."""

    __slots__ = ("_number", "_sections", "_total_ns", "_word", "name")

    def __init__(self, sections: Sections, number: int, word: int, name: str) -> None:
        """`word` is that of the lane file which holds its accumulated time."""
        self.name = name
        self._sections = sections
        self._number, self._word = number, word
        self._total_ns = 0

    def __repr__(self) -> str:
        return f"<section {self.name!r}>"

    @property
    def table_entry(self) -> int | None:
        """The word at which its entry begins; None for those that have none."""
        return self._word - layout.SECTION_NS if 0 < self._number <= layout.MAX_SECTIONS else None

    def forget_time(self) -> None:
        self._total_ns = 0

    def __enter__(self) -> Section:
        now = monotonic_ns()
        sections = self._sections
        if get_ident() != sections.thread or not sections.mark[0]:
            return self.__enter__() if sections.take() else self
        outer = (sections.current, sections.outer)  # first: it may run a finalizer that uses sections
        before = sections.current
        words = sections.words
        words[_SINCE] = now
        words[_SECTION] = self._number
        sections.outer = outer
        sections.current = self
        if before is not None:
            before._total_ns = total = before._total_ns + now - sections.since_ns
            words[before._word] = total
        sections.since_ns = now
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = monotonic_ns()
        sections = self._sections
        if get_ident() != sections.thread or not sections.mark[0]:
            return
        if sections.current is not self:
            return self.__exit__(kind, error, trace) if sections.go_back_to(self) else None
        before, sections.outer = sections.outer
        words = sections.words
        words[_SINCE] = now
        words[_SECTION] = 0 if before is None else before._number
        sections.current = before
        self._total_ns = total = self._total_ns + now - sections.since_ns
        words[self._word] = total
        sections.since_ns = now


class Sections:
    """The sections of one process, by name, and the one that it is in."""

    __slots__ = (
        "_free",
        "_session",
        "current",
        "known",
        "mark",
        "other",
        "outer",
        "since_ns",
        "thread",
        "words",
    )

    def __init__(self, session: Session | None) -> None:
        """`session`: None for sections of no run."""
        self._session = session
        self._free = list(range(layout.MAX_SECTIONS, 0, -1))  # numbers
        self.known: dict[Any, Section] = {}
        self.other = Section(self, layout.SECTION_OTHER, layout.SECTION_OTHER_NS, "other")
        self.known["other"] = self.other
        self.mark = _ANY_PROCESS if session is None else session.mark
        self.detach()

    def attach(self, words: memoryview) -> None:
        """Begin anew, in the lane file with these words: of a new process, or of a forked child."""
        self.detach()
        for section in tuple(self.known.values()):
            _introduce(section, words)
        self.words = words

    def detach(self) -> None:
        """Touch the lane file no more; a section that is open is left."""
        self.words = _NOWHERE
        self.thread = 0
        self.current: Section | None = None
        self.outer: Any = ()
        self.since_ns = monotonic_ns()
        for section in tuple(self.known.values()):
            section.forget_time()

    def let_go(self) -> None:
        """The run is over in this process: refer to its session no more."""
        self.detach()
        self._session, self.mark = None, _ANY_PROCESS

    def take(self) -> bool:
        """Let this thread use sections where no other does, a forked child with words of its own; False: it may not."""
        try:
            if not self.mark[0] and (self._session is None or self._session.after_fork()):
                return False
            self.thread = self.thread or get_ident()
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return False
        return self.thread == get_ident() and bool(self.mark[0])

    def go_back_to(self, section: Section) -> bool:
        """Give up the sections that were entered inside this one and never left; False where it was given up itself."""
        outer = self.outer
        while outer:
            before, outer = outer
            if before is section:
                self.current, self.outer = section, outer
                return True
        return False

    def get(self, name: object) -> Section:
        """Return the section of that name; names beyond the table, and what is no name, share one."""
        if not isinstance(name, str):
            return self._share("type", f"section({short(name)}) takes a text")
        text = str.__str__(name)
        data = text.encode("utf-8", "replace")[:_NAME_BYTES]
        shown = data.decode("utf-8", "ignore")
        if not shown or "\0" in shown:
            return self._share("name", f"section({short(name)}) has no name that can be shown")
        section = self.known.get(shown)
        if section is None:
            try:
                number = self._free.pop()
            except IndexError:
                what = f"this process has more than {layout.MAX_SECTIONS} sections"
                return self._share("number", f"{what}: {short(name)} is one of those")
            word = layout.SECTION_TABLE + (number - 1) * layout.SECTION_WORDS
            made = Section(self, number, word + layout.SECTION_NS, shown)
            section = self.known.setdefault(shown, made)  # another thread may have made it just now
            if section is made and self.mark[0]:
                _introduce(made, self.words)
        if len(self.known) < _MAX_KNOWN:
            self.known[text] = section
        return section

    def _share(self, cause: str, why: str) -> Section:
        if self._session is not None:
            self._session.warn_once(f"section {cause}", f"{why}; its time counts into the section 'other'")
        return self.other


def _introduce(section: Section, words: memoryview) -> None:
    """Write the name into the table."""
    at = section.table_entry
    if at is None:
        return
    name = section.name.encode("utf-8").ljust(_NAME_BYTES, b"\0")
    for word in reversed(range(layout.SECTION_NAME_WORDS)):
        words[at + layout.SECTION_NAME + word] = int.from_bytes(name[8 * word : 8 * word + 8], "little")


def find(sections: Sections, name: Any) -> Section:
    """Return the section of that name, for `Run.section`."""
    try:
        return sections.known[name]
    except (KeyError, TypeError) as error:
        try:
            if not foreign.is_own(error):
                raise
            return sections.get(name)
        except RecursionError:  # too near the interpreter's limit to ask whose it is
            return sections.other


nowhere = Sections(None)
