"""Edits of a run after the fact: its name, group, notes and tags, as a layer over its documents. Pure.

Each edit is for one *field*: `name`, `group` and `notes` are one each, and every tag is one of its own, so that tags
which two people add at the same time are both there. Of the edits of a field the newest holds, and covers what the
documents contain until it is undone: an undone field shows the documents again. State and points are in no edit.

No clock decides which edit is the newest. Each has a *counter*: one more than the highest that its place (a folder, a
collector) had for that run. Of two with the same counter, made in places that did not see each other, the one with
the higher random *origin* wins, the same everywhere. Who made it, and when, is shown and decides nothing.

Invariants:

- `merged` is a union: commutative, associative and idempotent, whatever was merged before and wherever;
- it is bounded: of `name` and `group` the newest `KEPT` edits stay, of `notes` and of each tag `KEPT_LONG`, and of all
  tags together `MAX_TAG_EDITS`. An edit that would make the run have more than `MAX_TAGS` edited tags is refused, so
  in one place nothing that holds is ever dropped; where more come together by merging, the oldest go;
- the same edits give the same bytes (`dumps`), which carry a digest of themselves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from logclient.errors import BadArgument, LogclientError, Unsupported

VERSION = 1
TEXTS = ("name", "group", "notes")
TAG = "tag"
FOLDER, COLLECTOR = "folder", "collector"  # places

KEPT, KEPT_LONG = 8, 4  # edits of one field
MAX_TAGS = 250  # that are edited
MAX_TAG_EDITS = KEPT_LONG * MAX_TAGS
MAX_BYTES = 4 << 20  # of `dumps`; what the limits allow is less
MAX_TEXT = {"name": 512, "group": 512, "notes": 64 << 10, TAG: 256}  # characters, as in a trainer's `init`
MAX_WHO = 200
_MAX_COUNTER = 1 << 53
_INT64 = 1 << 63
_ORIGIN = re.compile(r"[0-9a-f]{16}")
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ODD_IN_NOTES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_UNDO = (*TEXTS, "tags")
_LISTS = ("tags", "untag", "undo")

Field = tuple[str, str]  # ("name", ""), ("tag", "baseline"), ...
Value = str | bool | None  # of a tag: whether it is there; None: undone


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of one field."""

    field: str  # name, group, notes or tag
    tag: str  # which, with the field tag
    value: Value
    counter: int
    origin: str  # 16 hexadecimal digits
    who: str
    place: str
    time_ns: int

    @property
    def of(self) -> Field:
        """Return the field that it is for."""
        return self.field, self.tag

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the key by which the newest is found; two edits that differ in anything have different ones."""
        value = (type(self.value).__name__, str(self.value))
        return self.counter, self.origin, self.field, self.tag, value, self.place, self.who, self.time_ns

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = {"field": self.field}
        if self.field == TAG:
            made["tag"] = self.tag
        return made | {
            "value": self.value,
            "counter": self.counter,
            "origin": self.origin,
            "who": self.who,
            "place": self.place,
            "time_ns": self.time_ns,
        }


@dataclass(frozen=True, slots=True)
class Changes:
    """A wish for edits; None and empty: no change. `undo` names fields: name, group, notes, tags."""

    name: str | None = None
    group: str | None = None
    notes: str | None = None
    tags: Sequence[str] = ()
    untag: Sequence[str] = ()
    undo: Sequence[str] = ()

    def check(self) -> None:
        """Raise `BadArgument` for what no run can have."""
        for field in TEXTS:
            text = getattr(self, field)
            if text is not None:
                _check_text(field, text)
        if self.name is not None and not self.name.strip():
            raise BadArgument(
                "name: a run cannot have an empty one; undo the edit to get the one of its program back"
            )
        for tag in (*self.tags, *self.untag):
            _check_text(TAG, tag)
            if not tag.strip():
                raise BadArgument("tag: it is empty")
        if both := set(self.tags) & set(self.untag):
            raise BadArgument(f"tag {min(both)!r}: it is to be added and to be taken away; give one of them")
        for field in self.undo:
            if field not in _UNDO:
                raise BadArgument(f"undo {field!r}: expected one of {', '.join(_UNDO)}")

    def __bool__(self) -> bool:
        is_text = any(getattr(self, field) is not None for field in TEXTS)
        return is_text or bool(self.tags or self.untag or self.undo)


def changes_of(raw: Any) -> Changes:
    """Return the wish in a JSON object; `BadArgument` for what is none, and for a name that it does not have."""
    if not isinstance(raw, dict):
        raise BadArgument("an edit is a JSON object")
    texts: dict[str, str | None] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for name, value in raw.items():
        if name in TEXTS and (value is None or isinstance(value, str)):
            texts[name] = value
        elif name in _LISTS and isinstance(value, list) and all(isinstance(each, str) for each in value):
            lists[name] = tuple(value)
        elif name in (*TEXTS, *_LISTS):
            raise BadArgument(f"{name}: expected a {'text' if name in TEXTS else 'list of texts'}")
        else:
            raise BadArgument(f"{str(name)[:50]!r}: no such field; there are {', '.join((*TEXTS, *_LISTS))}")
    made = Changes(
        texts.get("name"),
        texts.get("group"),
        texts.get("notes"),
        lists.get("tags", ()),
        lists.get("untag", ()),
        lists.get("undo", ()),
    )
    made.check()
    return made


def _check_text(field: str, text: str) -> None:
    most = MAX_TEXT[field]
    if len(text) > most:
        raise BadArgument(f"{field}: {len(text):,} characters, and at most {most:,} are kept")
    if not is_clean(field, text):
        raise BadArgument(f"{field}: control characters and halves of surrogate pairs are no text")


def is_clean(field: str, text: str) -> bool:
    """Is it text that can be stored and shown? Notes may have several lines."""
    return (_ODD_IN_NOTES if field == "notes" else _ODD).search(text) is None


class Edits:
    """A set of edits of one run; never changed, `merged` and `edited` return others."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        self._all = _kept(edits)

    def __iter__(self) -> Iterator[Edit]:
        """The newest last."""
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Edits) and self._all == other._all

    def __hash__(self) -> int:
        return hash(self._all)

    def merged(self, *others: Edits) -> Edits:
        """The union with others."""
        return Edits([each for edits in (self, *others) for each in edits])

    @cached_property
    def newest(self) -> dict[Field, Edit]:
        """The newest edit of each field, undone ones too; in the order of those."""
        found: dict[Field, Edit] = {}
        for each in self._all:
            found.pop(each.of, None)
            found[each.of] = each
        return found

    @property
    def holding(self) -> list[Edit]:
        """Edits that cover something now, the newest last."""
        return [each for each in self.newest.values() if each.value is not None]

    @property
    def fields(self) -> list[str]:
        """Names of the fields that are edited now: name, group, notes, tags."""
        found = {"tags" if each.field == TAG else each.field for each in self.holding}
        return [field for field in _UNDO if field in found]

    def text(self, field: str, below: str) -> str:
        """Return the text of a field, `below` where no edit of it holds."""
        found = self.newest.get((field, ""))
        return found.value if found is not None and isinstance(found.value, str) else below

    def tags(self, below: Sequence[str]) -> list[str]:
        """Return the tags: those below that were not taken away, then those that were added."""
        told = {each.tag: each.value for each in self.holding if each.field == TAG}
        return [tag for tag in below if told.get(tag) is not False] + [
            tag for tag, value in told.items() if value is True and tag not in below
        ]

    def edited(self, changes: Changes, who: str, place: str, time_ns: int) -> Edits:
        """Return these with one more edit of each field that changes; themselves where none does."""
        changes.check()
        wanted: dict[Field, Value] = {}
        for field in changes.undo:
            wanted |= {each.of: None for each in self.holding if field in (each.field, f"{each.field}s")}
        wanted |= {(field, ""): text for field in TEXTS if isinstance(text := getattr(changes, field), str)}
        wanted |= {(TAG, tag): True for tag in changes.tags} | {(TAG, tag): False for tag in changes.untag}
        fresh = {
            of: value
            for of, value in wanted.items()
            if of not in self.newest or self.newest[of].value != value
        }
        if not fresh:
            return self
        tags = {tag for field, tag in (*self.newest, *fresh) if field == TAG}
        if len(tags) > MAX_TAGS and any(
            field == TAG and (field, tag) not in self.newest for field, tag in fresh
        ):
            raise BadArgument(
                f"tags: {len(tags):,} of this run would be edited, and at most {MAX_TAGS} can be"
            )
        counter, origin = 1 + (self._all[-1].counter if self._all else 0), os.urandom(8).hex()
        if counter >= _MAX_COUNTER:
            raise LogclientError(
                "this run was edited too often, or a damaged edit came in: it cannot be edited again"
            )
        who = who.encode("utf-8", "replace").decode()[:MAX_WHO]
        return Edits(
            [
                *self._all,
                *(Edit(*of, value, counter, origin, who, place, time_ns) for of, value in fresh.items()),
            ]
        )

    # ---- as bytes -------------------------------------------------------------------------------------------

    @cached_property
    def _listed(self) -> str:
        return _packed([each.as_dict() for each in self._all])

    @property
    def digest(self) -> bytes:
        """Return 16 bytes by which two places see that they have the same."""
        return blake2b(self._listed.encode(), digest_size=16).digest()

    def dumps(self) -> bytes:
        """Return them as bytes for a file, a parcel or a store."""
        return f'{{"version":{VERSION},"digest":"{self.digest.hex()}","edits":{self._listed}}}\n'.encode()


def loads(data: bytes) -> Edits:
    """Return what `dumps` wrote; `Unsupported` where a newer version did, `ValueError` for anything else."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data):,} bytes")
    try:
        raw = json.loads(data)
    except RecursionError:
        raise ValueError("no JSON of ours") from None
    if not isinstance(raw, dict) or type(raw.get("version")) is not int:
        raise ValueError("no JSON object of ours")
    if raw["version"] > VERSION:
        raise Unsupported("its edits were written by a newer logclient: update to read them")
    listed = raw.get("edits")
    if not isinstance(listed, list):
        raise ValueError("no list of edits")
    found = Edits(map(edit_of, listed))
    if blake2b(_packed(listed).encode(), digest_size=16).hexdigest() != raw.get("digest"):
        raise ValueError("the digest does not match")
    return found


def edits_of(listed: Any) -> Edits:
    """Return the edits in a list of JSON objects; what is none is left out."""
    found = []
    for raw in listed if isinstance(listed, list) else ():
        try:
            found.append(edit_of(raw))
        except ValueError:
            continue
    return Edits(found)


def edit_of(raw: Any) -> Edit:
    """Return the edit of a JSON object; `ValueError` where it is none."""
    if not isinstance(raw, dict):
        raise ValueError("an edit that is no object")
    field, tag, value = raw.get("field"), raw.get("tag", ""), raw.get("value")
    if not (isinstance(field, str) and isinstance(tag, str) and _is_value(field, tag, value)):
        raise ValueError(f"an edit of field {str(field)[:20]!r} that is none")
    counter, time_ns = raw.get("counter"), raw.get("time_ns")
    if type(counter) is not int or type(time_ns) is not int:
        raise ValueError("an edit without its numbers")
    if not 0 < counter < _MAX_COUNTER or not 0 <= time_ns < _INT64:
        raise ValueError("an edit with a number out of range")
    origin, who, place = raw.get("origin"), raw.get("who"), raw.get("place")
    if not (isinstance(origin, str) and _ORIGIN.fullmatch(origin)):
        raise ValueError("an edit without an origin")
    if not (isinstance(who, str) and len(who) <= MAX_WHO and is_clean("", who)):
        raise ValueError("an edit without its author")
    if place not in (FOLDER, COLLECTOR):
        raise ValueError("an edit without a place")
    return Edit(field, tag, value, counter, origin, who, place, time_ns)


def _is_value(field: str, tag: str, value: Any) -> bool:
    """Can a field have that value?"""
    if field == TAG:
        return bool(tag) and _fits(TAG, tag) and (value is None or type(value) is bool)
    return field in TEXTS and not tag and (value is None or (isinstance(value, str) and _fits(field, value)))


def _fits(field: str, text: str) -> bool:
    return len(text) <= MAX_TEXT[field] and is_clean(field, text)


def _packed(listed: Any) -> str:
    return json.dumps(listed, ensure_ascii=False, separators=(",", ":"))


def _kept(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Within the limits, each once, the newest last. A cut never brings back what a merge with more would cut."""
    counts: dict[Field, int] = {}
    tag_edits = 0
    kept = []
    for each in sorted(set(edits), key=lambda each: each.order, reverse=True):
        most = KEPT if each.field in ("name", "group") else KEPT_LONG
        counts[each.of] = counts.get(each.of, 0) + 1
        if counts[each.of] > most or (each.field == TAG and tag_edits >= MAX_TAG_EDITS):
            continue
        tag_edits += each.field == TAG
        kept.append(each)
    return tuple(reversed(kept))


NONE = Edits()
