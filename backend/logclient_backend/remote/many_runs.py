"""Questions about many runs of a server in one request each, as far as an answer has room. `NoPath` from an older one.

A request names runs by their ids: as many as fit a request line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote_plus

from ..runs import strict
from ..runs.extremes import Extreme
from . import contents
from .access import ServerError
from .runs import PAGE_FIELDS
from .server import Server

MAX_RUNS = 500  # of one request
_MAX_LINE = 24_000  # bytes of ids in a request line

Settings = tuple[dict[str, Any], dict[str, Any]]  # config and summary
Page = dict[str, Any]  # `Series` of the API


class ManyRuns:
    """Bulk questions to one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def settings(self, ids: Sequence[str]) -> dict[str, Settings]:
        """Config and summary of each run that is there."""
        found: dict[str, Settings] = {}
        for answer in self._answers(ids, lambda some: self._server.json("/configs", run=some)):
            for row in answer["runs"]:
                found[row["run"]] = strict.unwrap(row["config"]), strict.unwrap(row["summary"])
        return found

    def extremes(self, ids: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Extreme]]:
        """Newest, lowest and highest value of these keys of each run, where it has them."""
        found: dict[str, dict[str, Extreme]] = {}
        asked = list(keys)
        for answer in self._answers(ids, lambda some: self._server.json("/extremes", run=some, key=asked)):
            for row in answer["values"]:
                extreme = Extreme(contents.last_value(row["last"]), row["min"], row["max"])
                found.setdefault(row["run"], {})[row["key"]] = extreme
        return found

    def series(
        self, ids: Sequence[str], key: str, first_step: int | None, last_step: int | None
    ) -> Iterator[tuple[str, list[Page]]]:
        """Each run that has the key, with all pages of its points."""
        steps = {"first_step": first_step, "last_step": last_step}
        asked = {name: value for name, value in steps.items() if value is not None}
        for answer in self._answers(
            ids, lambda some: self._server.json("/series", run=some, key=key, **asked)
        ):
            for page in answer["series"]:
                pages = [page]
                while not pages[-1]["is_all"]:
                    pages.append(self._page(page["run"], key, pages[-1]["next"], asked))
                yield page["run"], pages

    def _page(self, run: str, key: str, after: str, steps: dict[str, int]) -> Page:
        return self._server.json(
            "/run/series", run=run, key=key, after=after, limit=1_000_000, field=PAGE_FIELDS, **steps
        )

    def _answers(
        self, ids: Sequence[str], ask: Callable[[list[str]], dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Ask for some after the other; what an answer had no room for is asked for again."""
        left = list(ids)
        while left:
            some = _fitting(left)
            rest = left[len(some) :]
            answer = ask(some)
            yield answer
            again = [str(id) for id in answer["left"]]
            if len(again) >= len(some):
                raise ServerError(
                    f"{self._server.url} answers for none of the runs that it was asked for: update it"
                )
            left = again + rest


def _fitting(ids: Sequence[str]) -> list[str]:
    some: list[str] = []
    size = 0
    for id in ids[:MAX_RUNS]:
        size += len(quote_plus(id)) + len("&run=")
        if some and size > _MAX_LINE:
            break
        some.append(id)
    return some
