"""Rules of alerts as `init(alerts=...)` takes them, and as `run.json`, documents and a file of rules hold them.

Runs in the training process in `init`, where any are given, and in agent and collector, which trust neither a run nor
the wire: `checked` is the one parser. A rule is a text or a dict::

    "loss > 10"   "lr < 1e-8 for 20"   "nonfinite train/*"   "spike loss"   "drop tokens/s"   "straggler time/step"
    {"when": "over", "key": "loss", "value": 10, "steps": 1}        {"when": "disk", "free": 0.05}     "replica"

`key` is a pattern of the shell (`*`, `?`, `[a-z]`). A rule states a condition and nothing else: where alerts go is in
no rule, see `logclient_backend/alerts/targets.py`.
"""

from __future__ import annotations

from ..errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_RULES = 100
MAX_KEY = 200  # characters of a pattern
MAX_STEPS = 1_000_000

# kind: its fields with their defaults; None: must be given
_COMPARED = {"key": None, "value": None, "steps": 1}
KINDS: dict[str, dict[str, Any]] = {
    "over": _COMPARED,
    "under": _COMPARED,
    "nonfinite": {"key": "*"},
    "spike": {"key": None, "by": 0.0},  # peak / level - 1 at least; 0: whatever the detector finds
    "drop": {"key": None, "by": 0.0},  # 1 - after / before at least
    "straggler": {"key": ""},  # empty: the seconds in sections
    "replica": {"tolerance": 0.0},  # share by which sums of `run.fingerprint` may differ; 0: not a bit may
    "stalled": {},
    "state": {},
    "gone": {},
    "alert": {},
    "disk": {"free": 0.05},  # share of the run folder's disk
    "budget": {"used": 0.9},
    "dropped_records": {},
}
# Rules that hold for every run: none of them can be wrong about a run that is well.
ALWAYS = ("stalled", "state", "gone", "alert", "disk", "budget", "dropped_records")


def checked(given: Any) -> list[dict[str, Any]]:
    """Return rules with all their fields, none twice. Raises BadArgument, which names the rule."""
    if isinstance(given, (str, dict)):
        given = (given,)
    try:
        rules = list(given)
    except TypeError:
        raise BadArgument(f"alerts is a list of rules, not of type {type(given).__name__}") from None
    if len(rules) > MAX_RULES:
        raise BadArgument(f"alerts: {len(rules):,} rules, and at most {MAX_RULES} are taken")
    found: list[dict[str, Any]] = []
    for number, each in enumerate(rules, 1):
        try:
            rule = _rule(_of_text(each) if isinstance(each, str) else each)
        except BadArgument as error:
            raise BadArgument(f"alerts, rule {number} ({_shown(each)}): {error}") from None
        if rule not in found:
            found.append(rule)
    return found


def _of_text(text: str) -> dict[str, Any]:
    for sign, kind in ((">", "over"), ("<", "under")):
        key, found, rest = text.rpartition(sign)
        if found:
            value, _, steps = rest.partition(" for ")
            rule: dict[str, Any] = {"when": kind, "key": key.strip(), "value": _number(value)}
            if steps:
                number = steps.strip().removesuffix("steps").strip()
                if not (number.isascii() and number.isdecimal()):
                    raise BadArgument(f"expected a whole number behind 'for', not {steps.strip()[:40]!r}")
                rule["steps"] = int(number[:12])
            return rule
    kind, _, key = text.strip().partition(" ")
    return {"when": kind, "key": key.strip()} if key.strip() else {"when": kind}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadArgument(
            f"expected KEY > NUMBER or KEY < NUMBER, and {text.strip()[:40]!r} is none"
        ) from None


def _rule(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadArgument('expected a text such as "loss > 10", or a dict such as {"when": "nonfinite"}')
    kind = given.get("when")
    fields = KINDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise BadArgument(f"'when' is one of {', '.join(KINDS)}; or write KEY > NUMBER")
    unknown = [str(name)[:40] for name in given if name != "when" and name not in fields]
    if unknown:
        known = ", ".join(fields) or "none"
        raise BadArgument(f"{kind} has no field {unknown[0]!r}; its fields: {known}")
    rule: dict[str, Any] = {"when": kind}
    for name, default in fields.items():
        value = given.get(name, default)
        if value is None or (default is None and value == ""):
            raise BadArgument(f"{kind} needs {name!r}")
        rule[name] = _CHECKS.get(name, _share)(name, value)
    return rule


def _key(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_KEY or not value.isprintable():
        raise BadArgument(
            f"{name!r} is a key or a pattern such as 'train/*', of at most {MAX_KEY} characters"
        )
    return value


def _value(name: str, value: Any) -> float:
    try:
        number = float(value) if type(value) in (int, float) else None
    except OverflowError:
        number = None
    if number is None or number - number != 0:
        raise BadArgument(f"{name!r} is a number that is finite")
    return number


def _steps(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_STEPS:
        raise BadArgument(f"{name!r} is a whole number from 1 to {MAX_STEPS:,}")
    return value


def _by(name: str, value: Any) -> float:
    number = _value(name, value)
    if number < 0:
        raise BadArgument(f"{name!r} is a share from 0 on: 0.5 for a change by half")
    return number


def _share(name: str, value: Any) -> float:
    number = _value(name, value)
    if not 0 < number < 1:
        raise BadArgument(f"{name!r} is a share between 0 and 1: 0.05 for 5 %")
    return number


def _tolerance(name: str, value: Any) -> float:
    number = _value(name, value)
    if not 0 <= number < 1:
        raise BadArgument(f"{name!r} is a share from 0 to 1: 1e-6; 0: not a bit may differ")
    return number


_CHECKS = {"key": _key, "value": _value, "steps": _steps, "by": _by, "tolerance": _tolerance}


def _shown(rule: Any) -> str:
    """Return the rule for a message, cut; the text of an object that is no rule could be foreign code."""
    if isinstance(rule, str):
        return repr(rule[:60])
    if isinstance(rule, dict) and isinstance(when := rule.get("when"), str):
        return f"when {when[:40]!r}"
    return f"of type {type(rule).__name__}"
