"""Hugging Face Transformers: `Trainer(callbacks=[LogclientCallback(project="gpt")])`, or by name after `register()`.

Runs in the training process, in the callbacks of its Trainer.

Invariants:

- what the Trainer logs are means over all ranks, so rank 0 logs them; the others join the run and log nothing of it;
- `loss` becomes `train/loss`, `eval_loss` `eval/loss`, `test_loss` `test/loss`; `epoch` stays. What the Trainer says
  once, at the end (`train_runtime` and its kin), goes to the summary, so no step has a row of its own for it;
- the end of `train()` does not end the run: what comes next lands in it, too. A run that the callback started ends with
  the process, or where somebody finishes it;
- a request to stop or to save is followed after a step, on all ranks after the same one. The agent knows of the steps
  that are logged; so where there are ranks, they go by the newest of those, and all ranks know when the Trainer logs;
- a training that starts at step 0 counts on behind those before it in the run; one that is resumed keeps its steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import TrainerCallback

from logclient import NullRun, Run
from logclient.integrations import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


__all__ = ["LogclientCallback", "register"]

_ONCE = frozenset(
    {"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
)
_PARTS = ("eval", "test")  # what stands before the keys of an evaluation, or a prediction
_TIMED = "_runtime"  # ends the name of a value that each evaluation has


class LogclientCallback(guard.Guarded, TrainerCallback):
    """Logs a training to `run`, else to the current run, else to one that it starts when the training begins.

    All other arguments are those of `logclient.init`. The run's config gets the training arguments,
    and the model's configuration under `model`. Raises `BadArgument`, at the begin, for settings that make no sense.
    """

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,
        config: Any = None,
        group: str | None = None,
        tags: Iterable[str] = (),
        notes: str = "",
        resume: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        server: str | None = None,
        alerts: Iterable[str | dict[str, Any]] = (),
        **settings: Any,
    ) -> None:
        self._tie = guard.Tie(run, guard.given(locals()))
        super().__init__()
        self._before = 0  # steps of the trainings before this one in the run
        self._logged: int | None = None  # newest step that rank 0 has logged

    def _log(self, state: TrainerState, row: Mapping[str, Any]) -> None:
        """Also where there was no training before."""
        run = self._here(state)
        if self._off:
            return
        step = self._note(run, state)
        if any(key != "epoch" for key in row):
            part = next((key[: -len(_TIMED)] for key in row if str(key).endswith(_TIMED)), None)
            run.log(step, {_key(key, part): value for key, value in row.items()})

    def _note(self, run: Run | NullRun, state: TrainerState) -> int:
        """Note, on each rank, that the Trainer logs; return the step in the run."""
        step: int = self._before + state.global_step
        self._logged = step
        counts = guard.of_run(run, _Counts)
        counts.newest = max(counts.newest, step)
        return step

    @guard.opening
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the run, and tell it what is trained."""
        known = self._tie.run
        run = self._open(state)
        if self._off:
            return
        if run is not known:
            self._before, self._logged = 0, None
        if not state.global_step:
            self._before = guard.of_run(run, _Counts).newest
        if not state.is_world_process_zero:
            return
        config: dict[str, Any] = args.to_dict()  # tokens are left out by the library
        model = getattr(kwargs.get("model"), "config", None)
        if model is not None:
            config["model"] = model.to_dict()
        fit = {"first_step": self._before + state.global_step + 1, "steps": state.max_steps}
        if state.is_hyper_param_search:
            fit.update(trial=state.trial_name, params=dict(state.trial_params or {}))
        guard.add_fit(run, fit, **config)

    @guard.hook
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the Trainer save or stop, where somebody asked for it."""
        run = self._tie.run
        step = self._before + state.global_step if args.world_size == 1 else self._logged
        if run is None or step is None:
            return
        if run.should_save(step):
            control.should_save = True
        if run.should_stop(step):
            control.should_training_stop = True

    @guard.hook
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log what there is, at the trainer's step; also of an evaluation without a training."""
        if not logs:
            return
        if not state.is_world_process_zero:
            if self._tie.run is not None:
                self._note(self._tie.run, state)
            return
        if "train_runtime" in logs:
            self._here(state).summary.update({key: value for key, value in logs.items() if key in _ONCE})
            logs = {key: value for key, value in logs.items() if key not in _ONCE}
        self._log(state, logs)

    @guard.hook
    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """Log what a prediction measured; the Trainer itself logs it nowhere."""
        if metrics and state.is_world_process_zero:
            self._log(state, metrics)

    @guard.hook
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note in the run's summary, under `checkpoint`, where the last one and the best one are."""
        run = self._tie.run
        if run is None or not state.is_world_process_zero:
            return
        run.summary["checkpoint"] = {
            "last": os.path.join(args.output_dir or "", f"checkpoint-{state.global_step}"),
            "step": self._before + state.global_step,
            "best": state.best_model_checkpoint,
            "score": state.best_metric,
            "monitor": args.metric_for_best_model,
        }


def register(name: str = "logclient") -> None:
    """Make `TrainingArguments(report_to="logclient")` known, for this process.

    It adds the callback to the table in which Transformers keeps its own (`INTEGRATION_TO_CALLBACK`) and changes
    nothing else. Settings are those of `LOGCLIENT_*` variables then.
    """
    from transformers import integrations

    table: dict[str, type] = integrations.INTEGRATION_TO_CALLBACK  # loaded when asked for
    table[name] = LogclientCallback


class _Counts:
    """Counts over all trainings of a run."""

    __slots__ = ("newest",)

    def __init__(self) -> None:
        self.newest = 0  # step


def _key(key: Any, part: str | None) -> Any:
    """`part`: what stands before the keys of an evaluation with a `metric_key_prefix` of the user's, which is timed."""
    if key == "epoch" or not isinstance(key, str):
        return key
    first, _, rest = key.partition("_")
    if first in _PARTS and rest:
        return f"{first}/{rest}"
    if part and part != "train" and key.startswith(f"{part}_"):
        return f"{part}/{key[len(part) + 1 :]}"
    return f"train/{key}"
