"""Names, notes, tags and alerts of a run, as texts of bounded length.

Runs in the training process, in `init` and where the user sets one of them. Whatever does not fit is cut and said; an
object that is no text becomes one, as far as that needs no wait and its own code allows it.
"""

from __future__ import annotations

from ..guest import foreign
from . import tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_NAME = 512  # characters of a project, name or group
MAX_NOTES = 64 << 10
MAX_TAGS = 1000
MAX_TAG = 256
MAX_ALERTS = 50
_MAX_TITLE = 200
_MAX_TEXT = 2000
LEVELS = ("info", "warn", "error")


def text_of(value: object, most: int) -> str:
    """Return any object as a text that JSON can hold, cut at `most` characters."""
    if issubclass(type(value), str):
        text = str.__str__(value)
    elif tensor.is_tensor(value):  # its text could be a wait for the device
        text = f"<{type(value).__name__}>"
    else:
        try:
            text = foreign.call(str, value)
        except foreign.Failed:
            text = f"<{type(value).__name__}>"
    return text[:most].encode("utf-8", "backslashreplace").decode()


def cut(what: str, text: str, most: int) -> tuple[str, str]:
    """Return the text within its limit, and where that cut it, a sentence that says so."""
    if len(text) <= most:
        return text, ""
    return text[:most], f"{what} of {len(text):,} characters is cut to {most:,}"


def tags_of(given: Any) -> tuple[list[str], str]:
    """Return tags within their limits, and what was wrong with those given, in a sentence. Never raises."""
    if isinstance(given, str):
        given = (given,)
    elif given is None:
        given = ()
    try:
        found = foreign.call(tuple, given)
    except foreign.Failed:
        return [], f"tags are a list of texts, not a {type(given).__name__}; took none"
    kept = [text_of(tag, MAX_TAG + 1) for tag in found[:MAX_TAGS]]
    if len(found) > MAX_TAGS:
        return [
            tag[:MAX_TAG] for tag in kept
        ], f"{len(found):,} tags are more than {MAX_TAGS:,}; took the first"
    if any(len(tag) > MAX_TAG for tag in kept):
        return [tag[:MAX_TAG] for tag in kept], f"tags of more than {MAX_TAG} characters are cut"
    return kept, ""


def alert(title: object, text: object, level: object, now_ns: int) -> tuple[dict[str, Any], str]:
    """Return an alert as it is stored, and what was wrong with its level, in a sentence."""
    wrong = ""
    if type(level) is not str or level not in LEVELS:
        given = repr(level[:40]) if type(level) is str else f"of type {type(level).__name__}"
        level, wrong = "info", f"alert level {given} is none of {', '.join(LEVELS)}; took info"
    title, text = text_of(title, _MAX_TITLE), text_of(text, _MAX_TEXT)
    return {"time": now_ns, "title": title, "text": text, "level": level}, wrong


def short(value: object) -> str:
    """Return a few characters that show the value; its type where its text would be foreign code, or a wait."""
    if value is not None and type(value) not in (str, bytes, int, float, bool):
        return f"of type {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    if type(value) is int and abs(value) >> 256:
        return f"of {value.bit_length()} bits"
    text = repr(value[:80]) if type(value) in (str, bytes) else repr(value)  # type: ignore[index]
    return text if len(text) <= 80 else text[:77] + "..."
