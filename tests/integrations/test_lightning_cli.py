"""The logger of a `LightningCLI`, named on its command line or in a configuration file, and the folders of a logger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.profilers import SimpleProfiler

import logclient
from logclient.integrations.lightning import LogclientLogger
from tests.integrations.lit import Digits, trainer
from tests.lanes import opened

LOGGER = "logclient.integrations.lightning.LogclientLogger"
USUAL = {
    "max_epochs": 1,
    "limit_train_batches": 4,
    "limit_val_batches": 1,
    "accelerator": "cpu",
    "devices": 1,
    "log_every_n_steps": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.xdist_group("lightning"),
]


@pytest.fixture(autouse=True)
def _elsewhere(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGCLIENT_QUIET", "1")


def fit(*arguments: str) -> LightningCLI:
    """A program of `LightningCLI(Digits)`, called with these arguments behind the word `fit`."""
    usual = [f"--trainer.{name}={value}".replace("False", "false") for name, value in USUAL.items()]
    return LightningCLI(Digits, args=["fit", *usual, *arguments])


def logged(run_dir: Path) -> Any:
    """The run that the program left, stored."""
    assert logclient.finish(60)
    (run,) = logclient.read(run_dir)
    assert run.series("loss").step.tolist() == [0, 1, 2, 3] and run.config["lr"] == 0.1
    return run


OPTIONS = ["--trainer.logger.project=cli", "--trainer.logger.name=by_hand", '--trainer.logger.tags=["a","b"]']
OPTIONS += ["--trainer.logger.group=g", '--trainer.logger.config={"seed": 7}', "--trainer.logger.notes=why"]
VALUES: dict[str, Any] = {"project": "cli", "name": "by_hand", "tags": ["a", "b"]}
VALUES |= {"group": "g", "config": {"seed": 7}, "notes": "why"}


@pytest.mark.first_is_quick
@pytest.mark.parametrize("way", ["options", "init_args", "list", "again"])
def test_a_program_of_lightning_cli_logs(way: str, run_dir: Path, tmp_path: Path) -> None:
    """Arguments on the command line, in `init_args` of a file, in a list of loggers, from the saved configuration."""
    described: Any = {"class_path": LOGGER, "init_args": VALUES}
    logger = [described] if way == "list" else described
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"trainer": {"logger": logger}}))
    if way == "options":
        cli = fit(f"--trainer.logger={LOGGER}", *OPTIONS)
    else:
        cli = fit("--config=c.yaml")
    if way == "again":
        logclient.finish(60)
        first = cli.trainer.loggers[0].version
        saved = Path(cli.trainer.log_dir or "") / "config.yaml"
        assert yaml.safe_load(saved.read_text())["trainer"]["logger"]["init_args"]["project"] == "cli"
        cli = fit(f"--config={saved}")
        assert logclient.finish(60)
        second = cli.trainer.loggers[0].version
        assert sorted(run.id for run in logclient.read(run_dir)) == sorted((str(first), str(second)))
        assert second != first
        return
    run = logged(run_dir)
    about = run.about
    assert (run.project, run.name, about["group"], list(run.tags)) == ("cli", "by_hand", "g", ["a", "b"])
    assert about["notes"] == "why" and run.config["seed"] == 7
    assert (tmp_path / "lightning_logs" / run.id / "config.yaml").exists()


def test_bare_and_further_settings(run_dir: Path) -> None:
    """The class alone; settings that are no arguments of `init` by name go into `dict_kwargs`."""
    cli = fit(f"--trainer.logger={LOGGER}", "--trainer.logger.dict_kwargs.finish_timeout_s=33.0")
    run = logclient._run
    assert isinstance(run, logclient.Run) and run._session.settings.finish_timeout_s == 33
    assert cli.trainer.log_dir == str(Path("lightning_logs", logged(run_dir).id).absolute())


@pytest.mark.slow
def test_switched_off_twice(tmp_path: Path) -> None:
    """Lightning refuses to overwrite a configuration: a logger without a run shares its folder with no other."""
    for _ in range(2):
        fit(f"--trainer.logger={LOGGER}", "--trainer.logger.mode=disabled")
    assert len(list(tmp_path.glob("lightning_logs/*/config.yaml"))) == 2


def test_lightning_puts_its_files_into_the_folder_of_the_run(tmp_path: Path) -> None:
    """Checkpoints and a profile; the folder stays where it was when the working directory changes."""
    with opened() as (run, _):
        logger = LogclientLogger()
        (tmp_path / "below").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path / "below")
            made = trainer(
                tmp_path / "root", logger, max_epochs=1, profiler=SimpleProfiler(filename="profile")
            )
            made.fit(Digits())
        folder = tmp_path / "lightning_logs" / run.id
        assert made.log_dir == logger.save_dir == str(folder)
        assert (folder / "fit-profile.txt").exists()
        (kept,) = (one for one in made.checkpoint_callbacks if isinstance(one, ModelCheckpoint))
        assert Path(kept.best_model_path).parent == folder / "test" / run.id / "checkpoints"


def test_a_folder_that_is_given(tmp_path: Path) -> None:
    """It is taken as it is."""
    with opened():
        for given in (tmp_path / "mine", str(tmp_path / "mine")):
            assert LogclientLogger(save_dir=given).save_dir == str(tmp_path / "mine")
