"""`Run`: what the user holds. Its `log` is the hot path; what a process holds of the run is its `Session`.

Runs in the training process, in whatever thread or handler calls it.

Invariants:

- `log` makes no system call but the clock, takes no lock and never waits; it swallows and counts its own failures
  and passes on the user's (a signal handler that raises inside our frames);
- a forked child that logs gets lanes of its own (`session.py`); its exit never ends the run;
- every wait of `flush` and `finish` has a deadline (`waiting.py`, `closing.py`).

Does not: start runs (`start.py`), touch the run folder (the agent does).
"""

from __future__ import annotations

from _weakref import ref

from .encode import about
from .errors import BadArgument
from .facts import Facts
from .guest import foreign
from .null import count_refused
from .null import why_closed as of_null
from .session import alerting, sections, stopping, tracing
from .session.session import Session
from .session.status import status_of
from .shm import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any

    from .null import NullRun
    from .session.phases import Phase
    from .session.recorder import Recorder
    from .session.sections import Section
    from .typed import Status

_END_STATES = ("finished", "failed", "preempted")


class Logger:
    """Base of the objects that a user logs with: the hot path."""

    __slots__ = ("_recorder",)
    _recorder: Recorder

    # ---- the hot path: log -> RingWriter.offer -> Shape.pack ----------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Copy the metrics into a lane and return; a full lane forgets its oldest records and counts them.

        `step` is any int of 64 bits, in any order; `metrics` maps keys to numbers, short texts or such dicts.
        Never raises (strict mode aside) and never waits.
        """
        recorder = self._recorder
        try:
            lane = recorder.first.pop()
        except (IndexError, RecursionError) as error:
            try:
                lane = recorder.take_instead(error)  # type: ignore[assignment]
            except RecursionError:  # at its limit not even a call that counts is possible
                recorder.session.counters.refused.uncalled += 1
                return
            if lane is False:  # type: ignore[comparison-overlap]
                raise  # the user's
            if lane is None:
                return
        try:
            shape = recorder.known.get(tuple(metrics))
            if shape is None or step.__class__ is not int:
                recorder.log_other(lane, step, metrics)
            else:
                lane.offer(shape, recorder.next_order(), step, metrics.values())
        except BaseException as error:
            seq = lane.seq
            try:
                is_done = recorder.log_again(self.log, lane, error, step, metrics)
            except RecursionError:  # too near its limit to find out whose exception it was
                is_done = error.__class__ in foreign.OWN_KINDS
                if is_done and lane.seq == seq:
                    recorder.session.counters.refused.uncalled += 1
            if not is_done:
                raise  # the user's
        finally:
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # a traceback that is kept keeps this frame: see Lanes.find_lost

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Store a message for whoever looks at the run; `level` is info, warn or error. The last 50 are kept.

        The agent delivers it at once, where it has somewhere to: docs/alerts.md. Beyond 100 in a short time one a
        second is stored, and the others are counted. Never waits.
        """
        alerting.add(self._recorder.session, self._recorder.rank, title, text, level)

    def section(self, name: str) -> Section:
        """Return a section of this process by its name, such as "data": `with run.section("data"):`.

        Its time is added up, and `logclient why` shows in which section each rank is, and since when. The time of an
        inner section is not the outer one's. One object per name, which may be kept and entered any number of times.
        Sections belong to the thread that uses one first; in others they do nothing. A process has 16; those beyond,
        and what is no name, share one called "other". Never raises, never waits, writes no record.
        """
        return sections.find(self._recorder.session.sections, name)

    # ---- requests of others -----------------------------------------------------------------------------

    def should_stop(self, step: int | None = None) -> bool:
        """Has somebody asked for a stop (`logclient stop`, a stop file), and is this the step for it?

        It turns true after one and the same step on all ranks, so that none leaves the others in a collective; it stays
        true. Each rank goes by the newest step that it logged, or by `step`, which a rank that logs nothing gives: else
        it is true there at once. Reads shared memory alone: never waits, never raises.
        """
        return stopping.should_stop(self._recorder, step)

    def should_save(self, step: int | None = None) -> bool:
        """Has somebody asked for a checkpoint? True once in each process for each request; else as `should_stop`."""
        return stopping.should_save(self._recorder, step)

    def fingerprint(
        self,
        params: Any,
        every: int = 100,
        *,
        replicas: str = "all",
        step: Callable[[], int] | None = None,
    ) -> None:
        """Log a few sums of each tensor, by which ranks that should hold the same are compared.

        `params` is a torch module, or tensors: a dict, pairs of name and tensor, `model.parameters()`. The sums are
        taken at the end of the first and each `every`-th backward pass, on the device, and read without waiting; keys
        are `fingerprint/<replicas>/<tensor>/<sum>`. Ranks that give the same word as `replicas` are compared with each
        other (`logclient show RUN --replicas`); of a DTensor only ranks with the same part. `step` gives the step, else
        the number of backward passes before. Again with the same tensors and word replaces it; `logclient.unwatch`
        ends it. Bad arguments are said once, and in strict mode are a `BadArgument`.
        """
        from .watching.fingerprints import fingerprint

        fingerprint(self._finder(), params, every, replicas, step)

    def _finder(self) -> Callable[[], Any]:
        """Return a function that gives this logger's `log` and session, and keeps no run open."""
        raise NotImplementedError


class Run(Logger):
    """One run as this process sees it. Made by `logclient.init`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recorder = session.recorder()
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}

    def as_rank(self, rank: int) -> RankedRun:
        """This run for callers of another rank than the process has, such as threads with a device each.

        What its `log` is given carries `rank`; all else is the run's own. For what is no rank it is the process's own
        rank, and said so once; in strict mode that is a `BadArgument`.
        """
        if type(rank) is int and 0 <= rank < layout.MAX_RANKS:
            return RankedRun(self, rank)
        wrong = f"as_rank({about.short(rank)}) takes an int from 0 on"
        if self._session.settings.strict:
            raise BadArgument(wrong)
        self._session.warn_once("as_rank", f"{wrong}; took the rank of this process")
        return RankedRun(self, None)

    def _finder(self) -> Callable[[], Any]:
        return _finder(self, None)

    # ---- what it shows ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        status = self.status()
        counts = f"accepted {status['accepted']:,}, durable {status['durable']:,}"
        return (
            f"<logclient.Run {self.name!r} ({self.id}): "
            f"{self._session.outcome.state or self._session.closed or 'running'}, {counts}>"
        )

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from .notebook import card

        try:
            return card.of_run(self._session)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            return card.of_failure(self, error)

    def __reduce__(self) -> tuple[Any, ...]:
        from .session.start import attach

        return attach, (self._session.shm_dir.path,)

    # ---- what the user attaches to the run ------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._session.run_id

    @property
    def project(self) -> str:
        return str(self._session.shm_dir.project)

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def dir(self) -> str:
        """The folder in which the agent keeps the runs."""
        return self._session.dir

    @property
    def url(self) -> str:
        """The address of the run's page, once a server has named one; else the command that opens the page.

        Known from `init` on where this user's runs went to that server before.
        """
        from .session import page  # `init` has loaded it

        return page.url_of(self._session)

    @property
    def config(self) -> Facts:
        """Settings of the experiment; changes are stored."""
        return self._facts("config", self._config)

    @config.setter
    def config(self, config: Any) -> None:
        self.config.replace(config)

    @property
    def summary(self) -> Facts:
        """Results of the run; changes are stored."""
        return self._facts("summary", self._summary)

    @summary.setter
    def summary(self, summary: Any) -> None:
        self.summary.replace(summary)

    def _facts(self, kind: str, data: dict[str, Any]) -> Facts:
        """A new object each time: it refers to the run, and a cycle would keep that beyond its last handle."""
        return Facts(lambda changed: self._session.write(kind, changed), self._session.notices.once, data)

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self._session.about.get("tags", ()))

    @tags.setter
    def tags(self, tags: Any) -> None:
        self._session.about["tags"], wrong = about.tags_of(tags)
        self._session.write("about", self._session.about)
        if wrong:
            self._session.warn_once("tags", wrong)

    def progress(self, expect_next_s: float = 600.0, what: str = "") -> Phase:
        """Declare that the next record may take up to so many seconds: a checkpoint, an evaluation, a compilation.

        Nobody calls this process late or stuck meanwhile. It ends with the next record; as a context manager
        (`with run.progress(600, "checkpoint"):`) with the block, whatever is logged inside. `what`: 32 bytes of it are
        shown. A clock and a few stores: never waits, never raises.
        """
        from .session import phases  # `init` has loaded it

        return phases.declare(self._session, expect_next_s, what)

    def trace(self, include: Iterable[str], exclude: Iterable[str] = ()) -> bool:
        """Keep the last calls of functions in these packages, in shared memory, for `logclient why --calls`.

        For each thread: function, file, line, and when it was called and when it returned. They can be read when the
        process answers nobody any more, and after it was killed. `exclude` names packages inside that are left out.
        Each call of a recorded function gets slower, before Python 3.12 a little every other call, too: docs/hangs.md.
        Called again, it records other packages. False, and said once, where another profiler, a debugger or coverage is
        installed.
        """
        return tracing.begin(self._session, include, exclude)

    # ---- counting, waiting, ending --------------------------------------------------------------------

    def status(self) -> Status:
        """Counts of this process, health of the agent, and how shipping goes.

        `accepted`, `forgotten`, `damaged`, `durable` (stored past an fsync) and `acked` (committed at the collector)
        count records over this process's lanes, `refused` records that got no place, `left_out` single points; `agent`,
        `server`, `device` (how device values come, and how many records wait for some) and `media` (counts of media
        values) are dicts. All keys are there in every state; their types are `logclient.Status` and its parts.
        """
        return status_of(self._session)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything logged so far is on disk, at most `timeout_s`; True if it is.

        Where no agent lives, one is started. A server is not waited for: what is on disk gets there, by the agent or by
        `logclient sync`.
        """
        from .session import dropped, waiting

        dropped.let_go_durable()
        return waiting.until_durable(self._session, waiting.patience_s(self._session, "flush", timeout_s))[0]

    def finish(self, timeout_s: float | None = None, *, state: str = "finished") -> bool:
        """End the run (in its owner), wait until it is on disk, at most `timeout_s`; True if it is.

        A server is waited for, too, within the same time and only while it takes records; what is missing there
        afterwards is said, and the agent goes on with it. `state` is finished, failed or preempted: a handler of
        SIGTERM knows what we cannot. In any other process of the run: give up this process's lanes. Afterwards `log`
        counts and drops. Where no agent lives, one is started. Never raises.
        """
        if type(state) is not str or state not in _END_STATES:
            known = ", ".join(_END_STATES)
            self._session.warn_once(
                "finish state", f"finish(state={about.short(state)}) is none of {known}; took finished"
            )
            state = "finished"
        return self._end({"state": state, "by": "finish"}, timeout_s)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            from .session.ending import state_of

            self._end({**state_of(error), "by": "with"}, None)
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise  # else it is pressed again, and the first one goes on

    def _end(self, state: dict[str, Any], timeout_s: float | None) -> bool:
        from .session import closing, waiting

        patience = None if timeout_s is None else waiting.patience_s(self._session, "finish", timeout_s)
        return closing.end(self._session, state, patience)


class RankedRun(Logger):
    """A run whose records carry another rank than the process's own: that of a thread, of a device.

    Lanes, counters and notices are the run's. May be pickled.
    """

    __slots__ = ("_run", "rank")

    def __init__(self, run: Run, rank: int | None) -> None:
        """`rank`: None for the process's own."""
        self._recorder = session_of(run).recorder(rank)
        self._run = run  # kept open
        self.rank = rank

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self._run!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _as_rank, (self._run, self.rank)

    def _finder(self) -> Callable[[], Any]:
        return _finder(self._run, self.rank)


def _as_rank(run: Run | NullRun, rank: int | None) -> RankedRun | NullRun:
    return RankedRun(run, None) if rank is None and isinstance(run, Run) else run.as_rank(rank)  # type: ignore[arg-type]


def _finder(run: Run, rank: int | None) -> Callable[[], Any]:
    kept = ref(run)

    def find() -> Any:
        found = kept()
        if found is None or found._session.closed:
            return None
        logger = found if rank is None else found.as_rank(rank)
        return logger.log, found._session

    return find


def why_closed(run: Run | NullRun) -> str:
    """Return why nothing more is logged to it; empty where something is, or where it is disabled."""
    return run._session.closed if isinstance(run, Run) else of_null(run)


def refuse(run: Run | NullRun, cause: str, why: str) -> None:
    """Count a record that is refused, and say why, once per cause, where there is a run to say it in.

    Raises BadArgument in strict mode.
    """
    if isinstance(run, Run):
        run._session.refuse(cause, why)
    else:
        count_refused(run)


def session_of(run: Run) -> Session:
    """Return what this process holds of a run, for other modules of this package."""
    return run._session
