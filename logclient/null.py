"""`NullRun`: the run of disabled mode, and of a handle whose run is over. Same names as `Run`, nothing behind them."""

from __future__ import annotations

from .encode import about
from .encode.nested_config import plain, settings_of
from .facts import Facts
from .guest.foreign import is_own
from .shm.counters import Counter
from .shm.health import no_agent, no_device, no_media, no_server
from .shm.notices import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from .session.phases import Phase
    from .session.sections import Section
    from .typed import Status


class NullRun:
    """Accepts every call and keeps nothing; where `closed` says why, records are counted as refused."""

    def __init__(
        self, project: str, config: Mapping[str, Any], tags: Iterable[str], closed: str = ""
    ) -> None:
        self.id = ""
        self.project = project
        self.name = ""
        self.dir = ""
        self.url = ""
        self._tags = tuple(about.tags_of(tags)[0])
        self._config = Facts(_nothing, _nothing, plain(settings_of(config) or {}, _nothing))
        self._summary = Facts(_nothing, _nothing, {})
        self._closed = closed
        self._refused = Counter(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return NullRun, (self.project, dict(self.config), self.tags, self._closed)

    @property
    def config(self) -> Facts:
        """Kept in this process alone."""
        return self._config

    @config.setter
    def config(self, config: Any) -> None:
        self._config.replace(config)

    @property
    def summary(self) -> Facts:
        """Kept in this process alone."""
        return self._summary

    @summary.setter
    def summary(self, summary: Any) -> None:
        self._summary.replace(summary)

    @property
    def tags(self) -> tuple[str, ...]:
        return self._tags

    @tags.setter
    def tags(self, tags: Any) -> None:
        self._tags = tuple(about.tags_of(tags)[0])

    def __repr__(self) -> str:
        return f"<logclient.NullRun: {self._closed or 'disabled, nothing is logged'}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from .notebook import card

        try:
            return card.of_null(self, self._closed)
        except Exception as error:
            if not is_own(error):
                raise
            return card.of_failure(self, error)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if not self._closed:
            return
        try:
            self._refused.add()
        except RecursionError:  # as in `Run.log`
            self._refused.uncalled += 1
            return
        try:
            if self._refused.value == 1:
                write_stderr(f"a record was refused and counted: {self._closed}")
        except RecursionError:
            return

    def as_rank(self, rank: int) -> NullRun:
        return self

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        pass

    def progress(self, expect_next_s: float = 600.0, what: str = "") -> Phase:
        from .session.phases import Phase  # `init` has loaded it

        return Phase(None)

    def should_stop(self, step: int | None = None) -> bool:
        return False

    def should_save(self, step: int | None = None) -> bool:
        return False

    def section(self, name: str) -> Section:
        from .session.sections import nowhere  # `init` has loaded it

        return nowhere.other

    def trace(self, include: Iterable[str], exclude: Iterable[str] = ()) -> bool:
        return False

    def fingerprint(
        self,
        params: Any,
        every: int = 100,
        *,
        replicas: str = "all",
        step: Callable[[], int] | None = None,
    ) -> None:
        pass

    def flush(self, timeout_s: float | None = None) -> bool:
        return True

    def finish(self, timeout_s: float | None = None, *, state: str = "finished") -> bool:
        return True

    def status(self) -> Status:
        """Return the same keys as `Run.status`; nothing is accepted, and no agent is needed."""
        return {
            "state": "no run" if self._closed else "disabled",
            "accepted": 0,
            "forgotten": 0,
            "damaged": 0,
            "durable": 0,
            "acked": 0,
            "refused": self._refused.value,
            "left_out": 0,
            "agent": no_agent(),
            "server": no_server(),
            "device": no_device(),
            "media": no_media(),
            "notices": [self._closed] if self._closed else [],
        }

    def __enter__(self) -> NullRun:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def _nothing(*args: object) -> None:
    pass


def why_closed(run: NullRun) -> str:
    """Return why nothing is logged to it, where somebody expected that; empty in disabled mode."""
    return run._closed


def count_refused(run: NullRun, amount: int = 1) -> None:
    """Count records that are refused for this run."""
    run._refused.add(amount)
