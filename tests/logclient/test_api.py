"""The public interface: what is there, what it refuses and how it says so, disabled and strict mode."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import BadArgument, NullRun, Run
from logclient.config import SETTINGS, Config
from tests.lanes import ROOT, Script, lane_files, opened


def test_all_is_what_is_there() -> None:
    """`__all__` names every public object of the package and nothing else; each has a docstring."""
    public = {
        name
        for name, value in {
            **vars(logclient),
            **{name: getattr(logclient, name) for name in (*logclient._TYPES, *logclient._MEDIA)},
        }.items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in ("annotations", "TYPE_CHECKING")
    }
    assert public == set(logclient.__all__)
    assert all(inspect.getdoc(getattr(logclient, name)) for name in logclient.__all__)


def test_module_functions_are_the_methods_of_the_run() -> None:
    """log, flush, finish and status take what the methods take."""
    for name in ("log", "flush", "finish", "status"):
        method = list(inspect.signature(getattr(Run, name)).parameters.values())[1:]
        assert list(inspect.signature(getattr(logclient, name)).parameters.values()) == method


def public_names(kind: type, instance: object) -> set[str]:
    return {name for name in {*dir(kind), *getattr(instance, "__dict__", ())} if not name.startswith("_")}


def test_disabled_run_has_every_name_of_a_run(run_dir: Path) -> None:
    """`mode="disabled"`: same names, same signatures, no file, no process, nothing kept."""
    off = logclient.init("p", mode="disabled", config={"lr": 1}, tags=["a"])
    assert type(off) is NullRun
    with opened() as (run, _):
        names = public_names(Run, run)
        assert names == public_names(NullRun, off)
    for name in names:
        if callable(getattr(Run, name)):
            ours, its = (inspect.signature(getattr(kind, name)).parameters for kind in (Run, NullRun))
            assert list(ours.values()) == list(its.values()), name
    with off as same:
        same.log("any", object())  # type: ignore[arg-type]
        same.summary["a"] = 1
        same.config["b"] = {"c": 2}
        same.alert("x")
        assert same.flush() and same.status()["refused"] == 0
        assert dict(same.config) == {"lr": 1, "b": {"c": 2}} and same.tags == ("a",)
    assert off.finish()
    assert pickle.loads(pickle.dumps(off)).config == off.config
    assert len(lane_files()) == 1
    assert {*logclient.status()} == {*run.status()}


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"project": 5}, "project=5: expected a text, got int"),
    ({"name": b"x"}, "name=b'x': expected a text"),
    ({"id": 7}, "run_id=7: expected a text"),
    ({"resume": "maybe"}, "resume='maybe': expected one of allow, never, must"),
    ({"mode": "on"}, "mode='on': expected one of online, offline, disabled"),
    ({"dir": 3}, "dir=3: expected a text"),
    ({"tags": 3}, "tags=3: expected a list of texts"),
    ({"notes": None}, "notes=None: expected a text"),
    ({"config": [1]}, "config is a list: expected a dict"),
    ({"config": 5}, "config is a int: expected a dict"),
    ({"learning_rate": 1}, "no setting is called 'learning_rate'; there are: project, name, id, config, "),
    ({"lanes": 0}, "lanes=0: expected 1 to 8"),
    ({"lanes": 9}, "lanes=9: expected 1 to 8"),
    ({"lanes": 2.0}, "lanes=2.0: expected a whole number, got float"),
    ({"lanes": True}, "lanes=True: expected a whole number, got bool"),
    ({"lanes_bytes": -1}, "lanes_bytes=-1: expected a number from 0 on"),
    ({"finish_timeout_s": float("nan")}, "finish_timeout_s=nan: expected a number from 0 on"),
    (
        {"flush_timeout_s": float("inf")},
        "flush_timeout_s=inf: expected a number from 0 on that is not infinite",
    ),
    ({"strict": 1}, "strict=1: expected 1, true, yes, 0, false or no, got int"),
    ({"folder_errors": "ignore"}, "folder_errors='ignore': expected one of fallback, raise"),
]


@pytest.mark.parametrize(
    ("given", "sentence"), BAD_CALLS, ids=lambda given: next(iter(given), "") if type(given) is dict else ""
)
def test_wrong_arguments_of_init_raise_at_once(given: dict[str, Any], sentence: str, run_dir: Path) -> None:
    """A `BadArgument` (also ValueError) names the argument, what was wrong and what is expected; nothing is left."""
    for mode in ({}, {"mode": "disabled"}):
        with pytest.raises(BadArgument, match=re.escape(sentence)) as caught:
            logclient.init(**{**mode, **given})
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, logclient.LogclientError)
    assert not lane_files()


def test_wrong_settings_in_the_environment_name_the_variable(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of setting says which variable could not be read; an empty one counts as not set."""
    for variable, text, expected in (
        ("LOGCLIENT_LANES", "four", "a whole number"),
        ("LOGCLIENT_FLUSH_TIMEOUT_S", "soon", "a number"),
        ("LOGCLIENT_STRICT", "maybe", "1, true, yes, 0, false or no"),
    ):
        monkeypatch.setenv(variable, text)
        with pytest.raises(BadArgument, match=re.escape(f"{variable}={text!r}: expected {expected}")):
            logclient.init("p")
        monkeypatch.setenv(variable, "")
        Config.from_env()
    monkeypatch.setenv("LOGCLIENT_MODE", "off")
    with pytest.raises(BadArgument, match=r"mode='off': expected one of"):
        logclient.init("p")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_can_be_set_by_variable_and_argument(
    setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a default of its kind, a variable, a help text; arguments win over variables."""
    assert setting.variable == "LOGCLIENT_" + setting.name.upper()
    assert setting.help and not setting.help.endswith(".") and "\n" not in setting.help
    assert type(setting.default) is setting.kind
    choices = {
        "resume": ("never", "must"),
        "mode": ("offline", "disabled"),
        "folder_errors": ("raise", "fallback"),
        "remote_stop": ("off", "on"),
        "ptrace": ("any", "agent"),
        "observe": ("off", "on"),
        "console": ("tee", "off"),
        "system": ("off", "60"),
        "capture": ("off", "diff"),
    }
    kinds: dict[type, tuple[Any, Any]] = {
        str: ("x", "y"),
        bool: (True, False),
        int: (3, 4),
        float: (1.5, 2.0),
    }
    first, second = choices.get(setting.name, kinds[setting.kind])
    monkeypatch.setenv(setting.variable, "yes" if first is True else str(first))
    assert getattr(Config.from_env(), setting.name) == first
    assert getattr(Config.from_env(**{setting.name: second}), setting.name) == second
    assert getattr(Config.from_env(**{setting.name: None}), setting.name) == first
    monkeypatch.delenv(setting.variable)
    assert getattr(Config.from_env(), setting.name) == setting.default


def test_settings_are_declared_for_type_checkers() -> None:
    """One attribute of `Config` per setting, of its type: a misspelt one is an error before anything runs."""
    tree = ast.parse(Path(inspect.getsourcefile(Config) or "").read_text())
    (config,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config")
    declared = {
        ast.unparse(line.target): ast.unparse(line.annotation)
        for node in config.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }
    del declared["_values"]
    assert declared == {setting.name: setting.kind.__name__ for setting in SETTINGS}


def test_settings_are_frozen_and_travel() -> None:
    """A `Config` refuses changes, pickles, and tells unknown names."""
    config = Config({"lanes": 2, "flush_timeout_s": 3})
    with pytest.raises(AttributeError, match="frozen; pass lanes= to init"):
        config.lanes = 3
    with pytest.raises(AttributeError):
        _ = config.unknown  # type: ignore[attr-defined]
    assert dict(pickle.loads(pickle.dumps(config))) == dict(config) and config.flush_timeout_s == 3.0


@pytest.mark.parametrize(
    ("step", "row", "sentence"),
    [
        (1, {"a": None}, "'a' is left out: None"),
        (1, {"a": object()}, "'a' is left out: a value of type object"),
        (1, {object(): 1.0}, "a key of type object"),
        ("one", {"a": 1.0}, "step 'one' is no integer of 64 bits"),
        (None, {"a": 1.0}, "step None is no integer of 64 bits"),
        (2**63, {"a": 1.0}, "is no integer of 64 bits"),
        (float("nan"), {"a": 1.0}, "step nan is no integer of 64 bits"),
        (1, [1.0], "metrics must be a dict of key to value, not of type list"),
        (1, None, "metrics must be a dict of key to value, not None"),
    ],
)
def test_wrong_arguments_of_log_are_counted_and_raise_in_strict_mode(
    step: Any, row: Any, sentence: str, run_dir: Path
) -> None:
    """Case R2-36: refused or left out with one warning each; with `strict` the same is a BadArgument."""
    with opened() as (run, file):
        for _ in range(3):
            run.log(step, row)
        status = run.status()
        assert status["left_out"] + status["refused"] == 3 and status["accepted"] == status["left_out"]
        assert (file.left_out, file.refused) == (status["left_out"], status["refused"])
        assert len(status["notices"]) == 1
    with opened(strict=True) as (run, _):
        for _ in range(2):
            with pytest.raises(BadArgument, match=re.escape(sentence)):
                run.log(step, row)
        run.log(1, {"ok": 1.0})
        status = run.status()
        assert status["refused"] + status["left_out"] == 2
        assert len(run._session.lanes.first) == 1


@pytest.mark.parametrize(
    ("step", "stored"),
    [(3.0, 3), (3.7, 3), (-3, -3), (True, 1), (2**63 - 1, 2**63 - 1), (-(2**63), -(2**63))],
)
def test_steps_that_can_be_integers_are(step: Any, stored: int, run_dir: Path) -> None:
    """Case R2-36: floats, bools and NumPy ints are converted; a fraction is cut and said once."""
    import numpy as np

    with opened() as (run, file):
        run.log(step, {"a": 1.0})
        run.log(np.int32(7), {"a": 1.0})
        assert [record.step for record in file.read()] == [stored, 7]
        assert len(run.status()["notices"]) == (step == 3.7)


def test_steps_come_in_any_order_and_repeat(run_dir: Path) -> None:
    """Case C8-2: 4, 3, 2, a stray one, then 0 to 99, twice: all stored under their steps, in the order of the calls."""
    steps = [4, 3, 2, 10_000_000, *range(100), *range(100)]
    with opened() as (run, file):
        for step in steps:
            run.log(step, {"a": 1.0})
        assert [record.step for record in file.read()] == steps


def test_log_without_a_run_is_counted_and_said_once(tmp_path: Path, run_dir: Path) -> None:
    """Before any init: no error, a count, one line; init afterwards works."""
    source = """
    for step in range(3):
        logclient.log(step, {"a": 1.0})
    before = logclient.status(), logclient.flush(0), logclient.finish(0)
    run = logclient.init("p")
    logclient.log(1, {"a": 1.0})
    print(json.dumps([*before, logclient.status()]))
    """
    script = Script(tmp_path, source)
    out, err = script.process.communicate(timeout=60)
    assert script.process.returncode == 0
    assert err.count("logclient:") == 1 and "call logclient.init() first" in err
    assert '"refused": 3' in out and '"accepted": 1' in out


def test_two_runs_keep_their_rows_apart(run_dir: Path) -> None:
    """Case S-7: rows in turn, one is finished, the other goes on; init with the open run's id is that run."""
    with opened("a", id="one") as (first, file), opened("b") as (second, other):
        assert logclient.init("a", id="one", quiet=True) is first
        for step in range(10):
            first.log(step, {"a": 1.0})
            second.log(step, {"b": 1.0})
        first.finish(0)
        second.log(10, {"b": 1.0})
        assert {tuple(record.values) for record in file.read()} == {("a",)}
        assert [tuple(record.values) for record in other.read()] == [("b",)] * 11


def test_run_in_a_with_block_tells_how_it_ended(run_dir: Path) -> None:
    """Leaving it by an exception is a failed run, with type and last lines; the exception passes."""
    with opened() as (run, file):
        with pytest.raises(ZeroDivisionError), run:
            1 / 0  # noqa: B018
        state = file.document("state")
        assert state["state"] == "failed" and state["exception"]["type"] == "ZeroDivisionError"
        assert "test_run_in_a_with_block" in state["exception"]["last_lines"][-1]


def test_flush_and_finish_answer_by_their_deadline(run_dir: Path) -> None:
    """Promise P6: False at the deadline while nothing is durable, True as soon as it is."""
    with opened() as (run, file):
        run.log(1, {"a": 1.0})
        assert run.flush(0.02) is False
        file.read()
        file.make_durable()
        assert run.flush(5) is True
        run.log(2, {"a": 1.0})
        assert run.finish(0.02) is False and run.finish(5) is False


def test_public_types_are_all_checked() -> None:
    """`typing_api.py`, which mypy reads in `tools/check.py`, uses every public name and every name of a run."""
    source = (ROOT / "tests" / "logclient" / "typing_api.py").read_text()
    names = {*logclient.__all__, *(name for name in dir(Run) if not name.startswith("_"))}
    assert not [name for name in names if not re.search(rf"\b{name}\b", source)]


@pytest.mark.parametrize("run_id", ["a\nb", "a\x00", "\x7f", "\x9b2J", "half \ud800"])
def test_an_id_that_no_collector_takes_is_refused_at_once(run_id: str, run_dir: Path) -> None:
    """By `init`, and nothing of the run is made; the collector would have refused it after the training."""
    with pytest.raises(logclient.BadArgument, match="choose another one"):
        logclient.init(id=run_id)
    assert not run_dir.exists()
    assert Config(values={"run_id": "ünïcode/../ok?&#"}).run_id == "ünïcode/../ok?&#"
