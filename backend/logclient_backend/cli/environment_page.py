"""`logclient show RUN --environment`: what the run's program ran in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ..runs.environment import Environment
from ..runs.node import listed, table, text, whole
from . import screen
from .text import ago, iso, plural, safe, size

_WIDTH = 110
_MAX_DIFF_LINES = 200


def as_dicts(found: list[Environment]) -> list[dict[str, Any]]:
    """All of it for programs."""
    return [{**each.as_dict(), "captured": iso(each.captured_ns)} for each in found]


def pages(found: list[Environment]) -> Iterator[Any]:
    """All of it for people, node by node."""
    if not found:
        yield screen.line(
            (
                "nothing is known of it: LOGCLIENT_CAPTURE=off, an earlier version, or a run of less than a second",
                "dim",
            )
        )
    for each in found:
        if len(found) > 1:
            yield screen.line((safe(each.host or each.node), "bold"))
        facts = list(_facts(each))
        left = max(len(label) for label, _ in facts)
        for label, value in facts:
            yield screen.line((f"{label:<{left}}  ", "dim"), value)
        yield from _diff(text(table(each.content.get("code")).get("diff")))


def _facts(each: Environment) -> Iterator[tuple[str, Any]]:
    content = each.content
    command, code, machine = (table(content.get(name)) for name in ("command", "code", "machine"))
    yield "found", ago(each.captured_ns, time.time_ns())
    yield "command", safe(" ".join(map(str, listed(command.get("arguments")))), 2_000) or "-"
    yield "folder", safe(command.get("folder") or "-")
    if code:
        yield "commit", _commit(code)
        if code.get("remote"):
            yield "remote", safe(code["remote"])
        yield "repository", safe(code.get("top"))
    yield "machine", _machine(machine)
    for gpu in listed(content.get("gpus")):
        memory = whole(table(gpu).get("memory_mib"))
        yield "GPU", f"{safe(table(gpu).get('name'))}, {size(memory << 20)}"
    for name, value in sorted(table(command.get("variables")).items()):
        yield "variable", safe(f"{name}={value}", 300)
    packages = [safe(package) for package in listed(content.get("packages"))]
    yield "packages", plural(len(packages), "package")
    for start in range(0, len(packages), 4):
        yield "", "  ".join(f"{package:<28}" for package in packages[start : start + 4]).rstrip()
    for name, why in table(content.get("missing")).items():
        yield "not known", f"{safe(name)}: {safe(why)}"


def commit(found: list[Environment]) -> list[tuple[str, Any]]:
    """Return the commit of the newest, as a fact about the run; none where it is not known."""
    code = table(found[-1].content.get("code")) if found else {}
    return [("commit", _commit(code))] if code.get("commit") else []


def _commit(code: dict[str, Any]) -> Any:
    branch = f" on {safe(code['branch'])}" if code.get("branch") else ""
    dirty = code.get("dirty")
    state = {True: ", with changes", False: ""}.get(dirty, f", perhaps with changes: {safe(code.get('why'))}")  # type: ignore[arg-type]
    return screen.line(safe(code.get("commit") or "none"), branch, (state, "yellow"))


def _machine(machine: dict[str, Any]) -> str:
    usable, there = whole(machine.get("usable_processors")), whole(machine.get("processors"))
    count = f"{usable} of {there} processors" if usable and usable != there else plural(there, "processor")
    parts = [count, machine.get("processor"), size(whole(machine.get("memory_bytes")))]
    return safe(
        ", ".join(str(part) for part in [*parts, machine.get("system"), machine.get("kernel")] if part)
    )


def _diff(diff: str) -> Iterator[Any]:
    lines = diff.splitlines()
    for line in lines[:_MAX_DIFF_LINES]:
        colour = {"+": "green", "-": "red"}.get(line[:1], "dim")
        yield screen.line((safe(line), colour))
    if len(lines) > _MAX_DIFF_LINES:
        yield screen.line((f"and {len(lines) - _MAX_DIFF_LINES:,} lines more: --json has them", "dim"))
