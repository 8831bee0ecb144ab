"""The trial of a search in which this code runs: of Optuna, or of Ray Tune.

Runs in the training process, where a callback finds its run.

Invariants:

- a library is asked only where the program has loaded it, and whatever it raises counts as "no trial";
- Optuna tells nobody which trial a thread is in, but its function that calls the objective is among those that called
  us: the trial is taken from there. Ray Tune runs each trial in a process of its own, which knows.
"""

from __future__ import annotations

import re
import sys

from logclient.config import environment
from logclient.guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MAX_FRAMES = 1_000
_NUMBER = re.compile(r"_(\d+)$")  # at the end of a trial's id in Ray


class Trial:
    """One trial of a search."""

    __slots__ = ("_params", "_search", "dir", "key", "label", "number")

    def __init__(
        self,
        key: tuple[Any, ...],
        number: int | None,
        label: str,
        search: Callable[[], Any],
        params: Callable[[], Any],
        dir: str = "",
    ) -> None:
        self.key = key  # the same for one trial, and for no other one
        self.number = number
        self.label = label
        self.dir = dir  # the working directory of the search, where a trial has one of its own
        self._search = search
        self._params = params

    def search(self) -> str:
        """Return the name of the search; may ask its storage."""
        return str(_asked(self._search) or "")

    def facts(self) -> dict[str, Any]:
        """Return what the config of a run says about its trial."""
        facts: dict[str, Any] = {"number": self.number, "name": self.label}
        return facts | {"params": dict(_asked(self._params) or {})}


def current() -> Trial | None:
    """Return the trial that this thread runs in; None outside a search, and in a search of another library."""
    return _of_optuna() or _of_ray()


def _of_optuna() -> Trial | None:
    if "optuna" not in sys.modules:
        return None
    frame: Any = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "_run_trial" and type(name) is str and name.startswith("optuna."):
            return _asked(_optuna_trial, frame.f_locals["trial"])  # type: ignore[no-any-return]
        frame = frame.f_back
    return None


def _optuna_trial(trial: Any) -> Trial:
    study, number = trial.study, int(trial.number)
    return Trial(
        ("optuna", id(study), number), number, str(number), lambda: study.study_name, lambda: trial.params
    )


def _of_ray() -> Trial | None:
    session = sys.modules.get("ray.train._internal.session")
    return None if session is None else _asked(_ray_trial, session)


def _ray_trial(session: Any) -> Trial | None:
    here = session.get_session()
    if here is None or not here.trial_id:
        return None
    number = _NUMBER.search(here.trial_id)
    return Trial(
        ("ray", here.trial_id),
        None if number is None else int(number[1]),
        str(here.trial_name or here.trial_id),
        lambda: here.experiment_name,
        dict,
        environment().get("TUNE_ORIG_WORKING_DIR", ""),
    )


def _asked(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return foreign.call(function, *arguments)
    except foreign.Failed:
        return None
