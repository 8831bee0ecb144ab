"""`wandb.sweep` and `wandb.agent`: grid and random searches of this process, without a server.

Runs in the training process, in the thread that calls `agent`. The search space is in `logclient.compat.sweeps`.

Invariants:

- each call of the function is a trial: the first run that it begins gets the trial's parameters in its config, the
  sweep's id as its group, and ends when the function returns;
- what the function raises ends that trial alone, as a failed run with its traceback on standard error;
  `KeyboardInterrupt` ends the search;
- after `MAX_FAILURES` failures at its begin, and none that went well, a search ends.
"""

from __future__ import annotations

import sys

from logclient.compat import stand_ins as inert
from logclient.compat.config_and_summary import of_file
from logclient.compat.sweeps import Space

from . import util
from .current import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .running import Run

MAX_FAILURES = 5
_METHODS = ("grid", "random")

_sweeps: dict[str, Sweep] = {}


class Sweep:
    """One search: its settings, its space, and how many trials it has begun."""

    def __init__(self, settings: dict[str, Any], project: str | None) -> None:
        self.id = util.generate_id()
        self.name = str(settings.get("name") or self.id)
        self.project = project or settings.get("project")
        self.method = str(settings.get("method") or "random")
        self.most = settings.get("run_cap")
        self.space = Space(settings.get("parameters") or {})
        self.begun = 0
        for line in self._troubles(settings):
            inert.warn(None, f"wandb.sweep: {line}")

    def _troubles(self, settings: dict[str, Any]) -> Iterator[str]:
        if self.method not in _METHODS:
            yield f"method {self.method!r} is not known here, parameters are drawn at random"
            self.method = "random"
        if settings.get("early_terminate"):
            yield "early_terminate is not there, every trial runs to its end"
        if self.method == "grid" and self.space.drawn:
            yield f"a grid cannot list {', '.join(self.space.drawn)}: drawn at random for each trial"
        yield from self.space.troubles

    def trials(self, count: int | None) -> Iterator[dict[str, Any]]:
        """Parameters of the trials to come: `count` of them at most, `run_cap` in all."""
        done = 0
        if count is None and not self.space.names:
            count = 1  # nothing is searched for
        while (count is None or done < count) and (not self.most or self.begun < int(self.most)):
            if self.method == "grid" and self.begun >= self.space.size:
                return
            self.begun += 1
            done += 1
            yield self.space.point(self.begun - 1) if self.method == "grid" else self.space.draw()


class Trial:
    """One call of the function."""

    def __init__(self, sweep: str, name: str, parameters: dict[str, Any], project: str | None) -> None:
        self.sweep = sweep
        self.name = name
        self.parameters = parameters
        self.project = project

    def take(self, run: Run) -> None:
        """A run that the function begins gets the parameters."""
        run.logclient_sweep = self.sweep
        run.config.lock(self.parameters)


def sweep(
    sweep: Any, entity: str | None = None, project: str | None = None, *others: Any, **more: Any
) -> str:
    """Take in a sweep's settings (a dict, a function that gives one, or the path of a YAML file), and give its id."""
    settings = sweep() if callable(sweep) else sweep
    line = ""
    if isinstance(settings, str):
        settings, line = of_file(settings)
    if not isinstance(settings, dict):
        settings, line = {}, "the settings of a sweep are a dict: none are taken"
    if line:
        inert.warn(None, f"wandb.sweep: {line}")
    made = Sweep(settings, project)
    _sweeps[made.id] = made
    return made.id


def agent(
    sweep_id: Any,
    function: Callable[[], Any] | None = None,
    entity: str | None = None,
    project: str | None = None,
    count: int | None = None,
    **others: Any,
) -> None:
    """Call `function` once for each trial, until the grid is done or `count` times; else a random search goes on."""
    known = _sweeps.get(str(sweep_id).rpartition("/")[2])
    if function is None:
        return inert.warn(None, "wandb.agent runs a function: programs that a sweep names are not started")
    if known is None:
        known, count = Sweep({}, project), count or 1
        inert.warn(
            None, f"wandb.agent: sweep {str(sweep_id)[:80]!r} is not of this process: no parameters are set"
        )
        known.id = known.name = str(sweep_id).rpartition("/")[2] or known.id
    failures, has_worked = 0, False
    for parameters in known.trials(count):
        name = f"{known.name}-{known.begun}"
        if _run(function, Trial(known.id, name, parameters, project or known.project)):
            has_worked = True
        else:
            failures += 1
        if not has_worked and failures >= MAX_FAILURES:
            return inert.warn(None, f"wandb.agent: the first {failures} trials failed, the search ends")


def _run(function: Callable[[], Any], trial: Trial) -> bool:
    """Did the trial go well?"""
    before, here.trial = here.trial, trial
    others = tuple(here.open)
    is_good, code = False, 1
    try:
        function()
        is_good, code = True, 0
    except SystemExit as end:
        is_good = end.code in (None, 0)
        code = 0 if is_good else 1
    except Exception:  # noqa: BLE001 - the function's: shown, and the next trial runs
        import traceback

        sys.stderr.write(f"logclient: trial {trial.name} failed\n{traceback.format_exc()}")
    finally:
        here.trial = before
        for run in [run for run in here.open if run not in others]:
            run.finish(code)
    return is_good


def controller(*args: Any, **kwargs: Any) -> inert.Inert:
    """There is no controller: `agent` runs a search by itself."""
    return inert.Inert("wandb.controller()")
