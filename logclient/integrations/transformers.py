"""Hugging Face Transformers: `Trainer(callbacks=[LogclientCallback(project="gpt")])`, or by name after `register()`.

Runs in the training process, in the callbacks of its Trainer.

Invariants:

- what the Trainer logs are means over all ranks, so rank 0 logs them; the others join the run and log nothing of it;
- `loss` becomes `train/loss`, `eval_loss` `eval/loss`, `test_loss` `test/loss`; `epoch` stays. What the Trainer says
  once, at the end (`train_runtime` and its kin), goes to the summary, so no step has a row of its own for it;
- the end of `train()` does not end the run: what comes next lands in it, too. A run that the callback started ends with
  the process, or where somebody finishes it.
"""

from __future__ import annotations

import os

from transformers import TrainerCallback

from logclient.integrations import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from logclient import NullRun, Run

__all__ = ["LogclientCallback", "register"]

_ONCE = frozenset(
    {"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}
)
_PARTS = ("eval", "test")  # what stands before the keys of an evaluation, or a prediction


class LogclientCallback(guard.Guarded, TrainerCallback):
    """Logs a training to `run`, else to the current run, else to one that it starts when the training begins.

    `settings` are arguments of `logclient.init`. The run's config gets the training arguments,
    and the model's configuration under `model`. Raises `BadArgument`, at the begin, for settings that make no sense.
    """

    def __init__(self, run: Run | NullRun | None = None, **settings: Any) -> None:
        super().__init__()
        self._tie = guard.Tie(run, settings)

    def _here(self) -> Run | NullRun:
        """The run, also where there was no training before."""
        return self._tie.run or self._open()

    @guard.opening
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the run, and tell it what is trained."""
        run = self._open()
        if not state.is_world_process_zero or self._off:
            return
        config: dict[str, Any] = args.to_dict()  # tokens are left out by the library
        model = getattr(kwargs.get("model"), "config", None)
        if model is not None:
            config["model"] = model.to_dict()
        run.config.update(config)

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
        if not logs or not state.is_world_process_zero:
            return
        if "train_runtime" in logs:
            self._here().summary.update({key: value for key, value in logs.items() if key in _ONCE})
            logs = {key: value for key, value in logs.items() if key not in _ONCE}
        if any(key != "epoch" for key in logs):
            self._here().log(state.global_step, {_key(key): value for key, value in logs.items()})

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
            self._here().log(state.global_step, {_key(key): value for key, value in metrics.items()})

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
            "step": state.global_step,
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


def _key(key: str) -> str:
    if key == "epoch":
        return key
    part, _, rest = key.partition("_")
    return f"{part}/{rest}" if part in _PARTS and rest else f"train/{key}"
