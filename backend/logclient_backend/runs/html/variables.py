"""Environment variables of a run in its page, node by node, as they were captured: secrets are masked in them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ..environment import Environment
from ..node import table
from .elements import fact_table


def section(environments: Sequence[Environment]) -> Iterator[str]:
    """Yield the section."""
    found = [(each, table(table(each.content.get("command")).get("variables"))) for each in environments]
    total = sum(len(variables) for _, variables in found)
    yield f"<details open><summary>Environment variables ({total:,})</summary>"
    if not total:
        yield '<p class="dim">None were captured (see LOGCLIENT_CAPTURE).</p>'
    for each, variables in found:
        if variables:
            if len(found) > 1:
                yield f"<h3>{escape(each.host or each.node)}</h3>"
            yield fact_table((name, escape(str(value))) for name, value in sorted(variables.items()))
    yield "</details>"
