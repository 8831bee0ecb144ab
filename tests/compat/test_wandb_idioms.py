"""Idioms of W&B's own pages (quickstart, logging, config, resume, sweeps, Hydra) and of scripts: none ends a training.

Each idiom is a program of its own here: it runs as a script does, in a folder of its own, and checks what it can see.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import logclient.compat.wandb as wandb
from logclient.spawn import agent as spawn
from tests.lanes import LaneFile, start_no_agent

IDIOMS = {
    "quickstart": """
        with wandb.init(project="p", config={"epochs": 3, "lr": 0.01}) as run:
            assert wandb.run is run and run.config.epochs == 3
            for epoch in range(2, run.config["epochs"] + 2):
                run.log({"acc": 1 - 2**-epoch, "loss": 2**-epoch})
        assert wandb.run is None
    """,
    "no run before init": """
        assert wandb.run is None and not wandb.run
        assert not hasattr(wandb.config, "lr") and wandb.config.get("lr", 3) == 3
    """,
    "config assigned before init": """
        wandb.config = {"lr": 0.1, "nested": {"a": 1}}
        assert wandb.config.lr == 0.1
        run = wandb.init(project="p")
        assert run.config.nested["a"] == 1 and wandb.config is run.config
    """,
    "config set by attributes before init": """
        from logclient.compat.wandb import config
        config.lr = 0.1
        wandb.init(config={"epochs": 2})
        assert config.lr == 0.1 and config.epochs == 2 and config is wandb.config
    """,
    "config assigned after init": """
        run = wandb.init(config={"lr": 1})
        wandb.config = {"lr": 2, "batch": 8}
        run.config = {"lr": 3}
        assert (run.config.lr, run.config.batch) == (3, 8) and wandb.config is run.config
        assert run.logclient_run.config["lr"] == 3
        wandb.finish()
        wandb.init()
        assert not wandb.config
    """,
    "config of OmegaConf": """
        omegaconf = pytest.importorskip("omegaconf").OmegaConf
        cfg = omegaconf.create({"lr": 0.1, "model": {"layers": [1, 2]}, "left": "???"})
        run = wandb.init(config=cfg)
        run.config.update(omegaconf.to_container(cfg), allow_val_change=True)
        wandb.config = omegaconf.to_container(cfg)
        assert wandb.config.lr == 0.1 and run.config["model"]["layers"] == [1, 2]
    """,
    "config of objects": """
        import argparse, dataclasses, types, collections
        @dataclasses.dataclass(slots=True)
        class Args:
            lr: float = 0.1
        run = wandb.init(config=Args())
        run.config.update(argparse.Namespace(a=1))
        run.config.update(types.SimpleNamespace(b=2))
        run.config.update(collections.namedtuple("N", "c")(3))
        run.config.update(e=4)
        assert dict(run.config) == {"lr": 0.1, "a": 1, "b": 2, "c": 3, "e": 4}
        assert {**run.config} == run.config.as_dict() == vars(argparse.Namespace(**wandb.config))
    """,
    "config of a file": """
        pytest.importorskip("yaml")
        Path("a.yaml").write_text("lr:\\n  desc: rate\\n  value: 0.5\\nplain: 3\\nwandb_version: 1\\n")
        run = wandb.init(config="a.yaml")
        assert dict(run.config) == {"lr": 0.5, "plain": 3}
    """,
    "config of a file that is not there": """
        run = wandb.init(config="none.yaml")
        assert not run.config and any("none.yaml" in line for line in run.status()["notices"])
    """,
    "config-defaults.yaml": """
        pytest.importorskip("yaml")
        Path("config-defaults.yaml").write_text("lr:\\n  value: 1\\nepochs:\\n  value: 2\\n")
        assert dict(wandb.init(config={"lr": 5}).config) == {"lr": 5, "epochs": 2}
    """,
    "config is copied and pickled": """
        import copy, json, pickle
        run = wandb.init(config={"a": 1, "d": {"e": 2}})
        for other in (copy.deepcopy(wandb.config), copy.copy(wandb.config), pickle.loads(pickle.dumps(wandb.config))):
            assert dict(other) == {"a": 1, "d": {"e": 2}} and other.a == 1
        assert json.loads(json.dumps(dict(wandb.config)))["a"] == 1
        assert copy.deepcopy(run) is run and pickle.loads(pickle.dumps(run)) is run
    """,
    "what is assigned as a whole": """
        run = wandb.init(config={"a": 1})
        run.summary = {"x": 1}
        wandb.summary = {"y": 2}
        wandb.run.summary["z"] = 3
        assert dict(run.summary) == {"x": 1, "y": 2, "z": 3} == dict(run.logclient_run.summary)
        assert wandb.config.__dict__["_items"] == {"a": 1} and wandb.AlertLevel.WARN.value == "WARN"
        wandb.finish()
    """,
    "setdefaults and values that change": """
        run = wandb.init(config={"lr": 1})
        run.config.setdefaults({"lr": 9, "w": 2})
        run.config.update({"lr": 2}, allow_val_change=True)
        with pytest.raises(wandb.errors.Error):
            run.config.update({"lr": 3})
    """,
    "define_metric by name, glob and object": """
        wandb.init()
        step = wandb.define_metric("custom")
        wandb.define_metric("val/*", step_metric=step, summary="min")
        wandb.define_metric(step, hidden=True)
        wandb.define_metric(name="acc", step_metric="custom", summary="max,mean", goal="maximize", step_sync=True)
        assert step.name == "custom" and str(step) == "custom" and step.goal is None
        wandb.log({"custom": 7})
        wandb.log({"val/loss": 1.0})
        assert rows()[-1] == (1, {"val/loss": 1.0, "custom": 7}) and wandb.summary["val/loss.min"] == 1.0
    """,
    "steps that go back": """
        run = wandb.init()
        for _ in range(5):
            wandb.log({"train": 1})
        for epoch in range(3):
            wandb.log({"val": epoch, "more": 1}, step=epoch)
        wandb.log({"train": 2})
        assert [row for row in rows() if "val" in row[1]] == [(k, {"val": k, "more": 1}) for k in range(3)]
        assert run.step == 6 and run.status()["refused"] == 0
        assert sum("comes after step" in line for line in run.status()["notices"]) == 1
    """,
    "an open row and steps that go back": """
        wandb.init()
        wandb.log({"a": 1}, step=10)
        wandb.log({"late": 1}, step=4)
        wandb.log({"b": 2}, step=10)
        wandb.log({"c": 3}, step=11)
        assert rows() == [(4, {"late": 1}), (10, {"a": 1, "b": 2})]
    """,
    "reinit": """
        one = wandb.init(name="one")
        assert wandb.init() is wandb.init(reinit=False) is wandb.init(reinit="return_previous") is one
        two = wandb.init(name="two", reinit=True)
        three = wandb.init(name="three", reinit="finish_previous")
        assert len({one.id, two.id, three.id}) == 3 and wandb.run is three and one._over and two._over
    """,
    "two runs side by side": """
        a, b = (wandb.init(name=name, reinit="create_new") for name in "ab")
        a.log({"x": 1})
        b.log({"x": 2})
        a.log({"x": 3})
        assert [values for _, values in rows(a)] == [{"x": 1}, {"x": 3}]
        assert [values for _, values in rows(b)] == [{"x": 2}]
        a.finish()
        b.finish()
    """,
    "what a run is called": """
        run = wandb.init(project="p", name="n", notes="hi", group="g", job_type="train", tags=("a",), entity="me")
        assert (run.name, run.project, run.notes, run.group, run.entity) == ("n", "p", "hi", "g", "me")
        assert run.path == f"me/p/{run.id}" and run.tags == ("a", "train") and run.job_type == "train"
        run.name, run.notes, run.group = "new-" + run.id, "later", "other"
        run.tags += ("b",)
        about = run.logclient_run._session.about
        assert (about["name"], about["notes"], about["group"], about["tags"][-1]) == (run.name, "later", "other", "b")
        assert (run.url + "/x").startswith("file://") and run.get_url() == run.url and run.project_name() == "p"
        assert run.sweep_id is None and not run.resumed and run.starting_step == 0 and not run.disabled
        assert run.settings.mode is None and run.settings.run_id == run.id and run.dir and run.offline
    """,
    "isinstance, annotations": """
        from typing import Optional
        def train(run: "Optional[wandb.sdk.wandb_run.Run]" = None, api: Optional[wandb.Api] = None) -> wandb.Run: ...
        run = wandb.init()
        assert isinstance(run, wandb.Run) and isinstance(run, wandb.sdk.wandb_run.Run)
        assert isinstance(run, wandb.wandb_sdk.wandb_run.Run) and not isinstance(run, wandb.sdk.lib.RunDisabled)
        assert not isinstance(run, wandb.Foo.Bar)
    """,
    "exceptions": """
        for name in ("CommError", "Error", "UsageError"):
            try:
                raise ValueError
            except getattr(wandb.errors, name):
                raise AssertionError
            except ValueError:
                pass
        assert issubclass(wandb.CommError, wandb.Error) and issubclass(wandb.errors.AnyOtherError, Exception)
        assert wandb.errors.CommError is wandb.CommError is wandb.apis.CommError
        with pytest.raises(wandb.apis.normalize.SomeError):
            raise wandb.apis.normalize.SomeError("x")
    """,
    "modules": """
        import logclient.compat.wandb.plot
        import logclient.compat.wandb.sklearn
        from logclient.compat.wandb import AlertLevel, Artifact, Image, Settings, Table, sdk
        from logclient.compat.wandb.apis.public import Api
        from logclient.compat.wandb.data_types import Image as Same
        from logclient.compat.wandb.integration.langchain import WandbTracer
        from logclient.compat.wandb.integration.lightning.fabric import WandbLogger
        from logclient.compat.wandb.integration.sb3 import WandbCallback as ForSb3
        from logclient.compat.wandb.integration.ultralytics import add_wandb_callback
        from logclient.compat.wandb.lightgbm import wandb_callback
        from logclient.compat.wandb.sdk.wandb_run import Run
        from logclient.compat.wandb.xgboost import WandbCallback
        assert Same is Image is wandb.Image and Run is wandb.Run
        assert ForSb3(verbose=2)._on_step() is True
        assert WandbCallback().after_iteration(None, 1, {"train": {"rmse": [3.0, 2.0]}}) is False
        class Mine(WandbTracer):
            def __init__(self):
                super().__init__(1, b=2)
        assert Mine().anything.at_all() is not None
        wandb.plot.confusion_matrix(preds=[1])
        wandb.sklearn.plot_classifier(1, 2)
        with pytest.raises(ImportError):
            import logclient.compat.wandb._private
    """,
    "stand-ins as numbers and texts": """
        best = wandb.Api().run("a/b/c").summary["acc"]
        assert not best > 0.5 and not best < 0.5 and not 0.5 > best and float(best) != float(best)
        assert f"{best:.3f}" == "nan" and f"{best:>8}" and f"{best:d}" == "0" and "%.2f %d %s" % (best, best, best)
        assert int(best) == 0 and Path(best.name).read_text() == ""
        assert max(0.25, best) == 0.25 and round(best) == 0 and abs(best + 1) is not None
        assert ("a" + best) is not None and (best - 1 / 2 * best) is not None and list(range(int(best))) == []
        assert list(best) == [] and len(best) == 0 and not best and "x" not in best and dict(**best) == {}
        assert os.listdir(best) == [] and os.path.join(best, "x") and ",".join(best) == ""
        with best as inside:
            inside["x"] = best.y
        first, *others = best or [1]
        best += 1
        del best["x"]
        assert next(best) is not None
    """,
    "stand-ins copied, pickled, hashed, awaited": """
        import asyncio, copy, pickle
        thing = wandb.beta.workflows
        assert repr(pickle.loads(pickle.dumps(thing))) == repr(copy.deepcopy(thing)) == repr(thing)
        assert {thing: 1}[thing] == 1
        async def main():
            async with thing as inside:
                await inside.call()
        asyncio.run(main())
    """,
    "loops over the API": """
        api = wandb.Api()
        runs = api.runs("e/p", filters={"x": 1})
        assert [run.name for run in runs] == [] and len(runs) == 0
        run = api.run("e/p/1")
        for row in run.scan_history(keys=["a"]):
            raise AssertionError
        assert not len(run.history()["loss"]) and run.config["lr"] is not None
        for file in run.files():
            file.download()
        run.update()
    """,
    "artifacts": """
        run = wandb.init()
        Path("m.pt").write_text("weights")
        artifact = wandb.Artifact("model", type="model", metadata={"x": 1})
        artifact.add_file("m.pt")
        artifact.add_dir(".", name="all")
        artifact.add_reference("s3://bucket/x")
        artifact.add(wandb.Table(columns=["a"]), "t")
        with artifact.new_file("notes.txt") as file:
            file.write("hello")
        assert wandb.log_artifact(artifact, aliases=["best"]) is artifact and artifact.wait() is artifact
        artifact.metadata["y"] = 2
        folder = run.use_artifact("e/p/model:best", type="model").download()
        assert Path(folder, "m.pt").read_text() == "weights" and Path(folder, "notes.txt").read_text() == "hello"
        assert Path(run.use_artifact("model:v0").get_path("m.pt").download()).read_text() == "weights"
        assert os.listdir(wandb.use_artifact("other:latest").download()) == []
        run.log_model(path="m.pt", name="kept")
        assert Path(run.use_model("kept")).read_text() == "weights"
        run.link_model("m.pt", "registry")
        run.link_artifact(artifact, "registry")
        assert artifact.version == "v0" and artifact.some.thing() is not None and artifact.files()
    """,
    "files": """
        run = wandb.init()
        path = os.path.join(run.dir, "model.h5")
        Path(path).write_text("weights")
        wandb.save(path)
        wandb.save("*.pt", base_path=".", policy="now")
        run.save()
        run.log_code(".", include_fn=lambda path: True)
        with wandb.restore("model.h5") as kept, wandb.restore("best.h5", run_path="a/b/c") as best:
            assert kept.read() == "weights" and Path(best.name).read_text() == ""
    """,
    "media": """
        numpy = pytest.importorskip("numpy")
        run = wandb.init()
        image = wandb.Image(numpy.zeros((4, 4)), caption="c", masks={"p": {"mask_data": 1}})
        table = wandb.Table(columns=["a", "b"], data=[[1, image]])
        table.add_data(2, image)
        table.add_column("c", [5, 6])
        assert table.get_column("c") == [5, 6] and len(table.data) == 2 and max(table.get_column("a")) == 2
        assert [row[0] for _, row in table.iterrows()] == [1, 2]
        wandb.log({
            "image": image, "images": [image], "table": table, "histogram": wandb.Histogram([1, 2]),
            "audio": wandb.Audio([0.0], sample_rate=8), "video": wandb.Video("a.mp4", fps=4), "html": wandb.Html("<b>"),
            "points": wandb.Object3D([[0, 0, 0]]), "plot": wandb.plot.line(table, "a", "b"), "loss": 1.0,
        })
        assert rows() == [(0, {"loss": 1.0})] and run.status()["left_out"] == 1  # the points
        assert wandb.Audio.durations([]) is not None and wandb.Object3D.from_file("x") is not None
    """,
    "watch": """
        wandb.init(mode="disabled")
        wandb.watch(None)
        wandb.finish()
        run = wandb.init()
        wandb.watch(None, log=None, log_freq=None)
        run.watch(object(), log="all")
        wandb.unwatch(None)
    """,
    "settings": """
        assert wandb.login(key="x", relogin=True) and wandb.setup() is not None
        wandb.require("core")
        settings = wandb.Settings(start_method="thread", console="off", _disable_stats=True, run_name="of-settings")
        assert settings.start_method == "thread" and settings.anything is None
        run = wandb.init(settings=settings, save_code=True, monitor_gym=True, anonymous="must", magic=True)
        assert run.name == "of-settings"
        wandb.termlog("a line")
        wandb.mark_preempting()
        assert wandb.env.PROJECT == "WANDB_PROJECT" and len(wandb.util.generate_id()) == 8
        assert run._some_private is None if False else True
        wandb.teardown()
        assert wandb.run is None
    """,
    "variables": """
        for name, value in {"PROJECT": "p", "NAME": "n", "RUN_GROUP": "g", "NOTES": "why", "TAGS": "a,b",
                            "DIR": "elsewhere", "RUN_ID": "some-id", "JOB_TYPE": "train", "MODE": "dryrun"}.items():
            setenv(getattr(wandb.env, name), value)
        run = wandb.init()
        assert (run.project, run.name, run.group, run.notes, run.id) == ("p", "n", "g", "why", "some-id")
        assert run.tags == ("a", "b", "train") and "elsewhere" in run.url
        wandb.finish()
        setenv("WANDB_DISABLED", "true")
        assert wandb.init().disabled
    """,
    "alerts": """
        from datetime import timedelta
        run = wandb.init()
        wandb.alert(title="Low", text="x", level=wandb.AlertLevel.WARN, wait_duration=timedelta(minutes=5))
        wandb.alert("Low", "again")
        run.alert(title=3, text=None, level="nonsense", wait_duration="soon")
        assert [alert["level"] for alert in run.logclient_run._session.alerts] == ["warn", "info"]
    """,
    "end": """
        wandb.init()
        wandb.log({"a": 1})
        wandb.finish(exit_code=1)
        wandb.finish()
        wandb.log({"b": 1})
        wandb.join()
        wandb.alert("after the end", "")
    """,
    "resume without an id": """
        run = wandb.init(resume=True)
        assert run.resumed is False and any("without an id" in line for line in run.status()["notices"])
        wandb.finish()
        assert wandb.init(resume="auto", id="given").id == "given"
    """,
    "a sweep over a grid": """
        seen = []
        def train():
            with wandb.init(config={"lr": 99, "own": 1}) as run:
                seen.append((run.config.lr, run.config.opt["name"], run.config.own, run.sweep_id))
                run.config.update({"lr": 7})
                run.log({"loss": run.config.lr})
                assert run.config.lr == seen[-1][0] and run.group == sweep_id
        settings = {"method": "grid", "parameters": {
            "lr": {"values": [1, 2]}, "opt": {"parameters": {"name": {"values": ["sgd", "adam"]}}}}}
        sweep_id = wandb.sweep(settings, project="p")
        wandb.agent(sweep_id, function=train)
        assert seen == [(lr, name, 1, sweep_id) for lr in (1, 2) for name in ("sgd", "adam")]
        assert wandb.run is None
    """,
    "a random sweep, by position, through the module": """
        seen = []
        def train():
            wandb.init(project="other")
            seen.append((wandb.run.project, wandb.config.lr))
            wandb.log({"loss": 1.0})
        sweep_id = wandb.sweep({"method": "bayes", "parameters": {"lr": {"min": 0.0, "max": 1.0}}}, "e", "p")
        wandb.agent(sweep_id, train, "e", "p", 3)
        wandb.agent(f"e/p/{sweep_id}", train, count=1)
        assert len(seen) == 4 and all(project == "p" and 0 <= lr <= 1 for project, lr in seen) and wandb.run is None
    """,
    "a sweep whose trials fail": """
        calls = []
        def train():
            wandb.init()
            calls.append(wandb.run.logclient_run)
            raise SystemExit(1) if len(calls) % 2 else ValueError("a trial's own")
        wandb.agent(wandb.sweep({"method": "random", "parameters": {"a": {"value": 1}}}), train)
        assert len(calls) == 5 and all(run._session.outcome.state == "failed" for run in calls)
    """,
    "a sweep of another process": """
        calls = []
        wandb.agent("entity/project/abc123", function=lambda: calls.append(wandb.init().sweep_id))
        wandb.agent(wandb.sweep({}), function=lambda: calls.append(wandb.init()))
        wandb.agent("abc123")
        assert len(calls) == 2 and calls[0] == "abc123"
    """,
    "events of TensorBoard, asked for before init": """
        wandb.tensorboard.patch(root_logdir="logs", pytorch=True)
        run = wandb.init()
        assert run.logclient_events is not None
        wandb.tensorboard.unpatch()
        assert run.logclient_events is None and wandb.tensorboard.log("x", step=3) is not None
    """,
}


@pytest.fixture
def alone(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program's own folder, no agents, and no run that an idiom leaves open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGCLIENT_QUIET", "1")
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "0.05")
    with mock.patch.object(spawn, "start_agent", start_no_agent):
        yield
        wandb.teardown()
        wandb.tensorboard.unpatch()


@pytest.mark.parametrize("name", IDIOMS)
def test_idiom_ends_no_training(alone: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It runs to its end, and what it sees is right."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}

    def rows(run: Any = None) -> list[tuple[int, dict[str, Any]]]:
        run = wandb.run if run is None else run
        records = LaneFile(run.logclient_run._session.lanes.path).read()
        return found.setdefault(run.id, []) + [(record.step, record.values) for record in records]

    import os

    names = {
        "wandb": wandb, "pytest": pytest, "Path": Path, "os": os, "rows": rows, "setenv": monkeypatch.setenv
    }  # fmt: skip
    exec(compile(textwrap.dedent(IDIOMS[name]), name, "exec"), names)
