"""Parameters that choose runs, as the list of runs has them, for questions about many runs at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from ..store.interface import Filter
from .parameters import MAX_FILTERS, MaybeName, filters


def _filters(
    project: MaybeName = None,
    name: MaybeName = None,
    group: MaybeName = None,
    state: MaybeName = None,
    tag: MaybeName = None,
    where: Annotated[
        list[str], Query(max_length=MAX_FILTERS, description="Conditions, as /runs has them.")
    ] = [],  # noqa: B006  # fastapi copies it
) -> list[Filter]:
    given = {"project": project, "name": name, "group": group, "state": state, "tag": tag}
    simple = [Filter(field, value=value) for field, value in given.items() if value is not None]
    return filters(where) + simple


Filters = Annotated[list[Filter], Depends(_filters)]
