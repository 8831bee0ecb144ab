"""Constructors of the integrations: what command lines and configuration files can find out about them."""

from __future__ import annotations

import ast
import importlib
import typing
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.integrations import guard
from tests.lanes import ROOT

# module -> the class that users make, and what it needs
CLASSES = {
    "accelerate": ("LogclientTracker", "accelerate"),
    "fastai": ("LogclientCallback", "fastai"),
    "keras": ("LogclientCallback", "keras"),
    "lightning": ("LogclientLogger", "lightning"),
    "transformers": ("LogclientCallback", "transformers"),
    "xla": ("LogclientXLACallback", "torch_xla"),
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of one integration."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    name, package = CLASSES[request.param]
    pytest.importorskip(package, reason=f"needs {package}")
    return getattr(importlib.import_module(f"logclient.integrations.{request.param}"), name)


def test_every_integration_is_looked_at() -> None:
    """A file with a callback of its own stands in the table."""
    folder = ROOT / "logclient" / "integrations"
    found = {path.stem for path in folder.glob("*.py") if "(guard.Guarded" in path.read_text()}
    assert found - {"guard"} == set(CLASSES)  # whose docstring shows how one is written


def arguments_of(path: Path, name: str, inside: str | None = None) -> dict[str, tuple[str, str]]:
    """Keyword arguments of a function: type and default of each, as they are written there."""
    nodes: list[Any] = ast.parse(path.read_text()).body
    if inside is not None:
        nodes = next(node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == inside)
    args: Any = next(node.args for node in nodes if isinstance(node, ast.FunctionDef) and node.name == name)
    found = {
        arg.arg: (ast.unparse(arg.annotation), ast.unparse(default))
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    }
    first = args.args[-1], args.defaults[-1]
    found[first[0].arg] = ast.unparse(first[0].annotation), ast.unparse(first[1])
    return found | {f"**{args.kwarg.arg}": (ast.unparse(args.kwarg.annotation), "")}


@pytest.mark.parametrize("module", CLASSES)
def test_a_constructor_names_every_argument_of_init(module: str) -> None:
    """With the type and default that it has there, and further settings beside them; the frameworks are not needed."""
    package = ROOT / "logclient"
    of_init = arguments_of(package / "__init__.py", "init")
    ours = arguments_of(package / "integrations" / f"{module}.py", "__init__", CLASSES[module][0])
    assert {name: ours.get(name) for name in of_init} == of_init
    assert ours["run"] == ("Run | NullRun | None", "None")
    assert set(of_init) == {*guard.ARGUMENTS, "**settings"}


@pytest.mark.parametrize("made", CLASSES, indirect=True)
def test_types_of_a_constructor_can_be_looked_up(made: Any) -> None:
    """As tools do that make options of them."""
    hints = typing.get_type_hints(made.__init__)
    assert hints["project"] == str | None and hints["run"] == logclient.Run | logclient.NullRun | None


@pytest.mark.parametrize("made", CLASSES, indirect=True)
def test_every_argument_reaches_init(made: Any) -> None:
    """Those that are not given do not: a variable of the environment stands for them."""
    given: dict[str, Any] = {name: f"given {name}" for name in guard.ARGUMENTS}
    given |= {"mode": "disabled", "resume": "never", "server": "grpc://host", "config": {"a": 1}}
    given["alerts"] = ["loss > 1"]
    for settings in (
        given,
        {"mode": "disabled", "quiet": True},
        {"mode": "disabled", "config": {}, "tags": []},
    ):
        assert made(**settings)._tie._settings == settings


@pytest.mark.parametrize("made", ["lightning", "transformers", "accelerate"], indirect=True)
def test_hydra_makes_one(made: Any) -> None:
    """From a configuration that names the class, with lists and dicts of Hydra's own."""
    omegaconf, hydra = pytest.importorskip("omegaconf"), pytest.importorskip("hydra.utils")
    described = {
        "_target_": f"{made.__module__}.{made.__name__}",
        "project": "digits",
        "name": "mlp",
        "tags": ["a", "b"],
        "config": {"lr": 0.1},
        "mode": "disabled",
        "quiet": True,
    }
    logger: Any = hydra.instantiate(omegaconf.OmegaConf.create(described))
    run: Any = logger._tie.open()
    assert run.project == "digits" and run.tags == ("a", "b") and run.config["lr"] == 0.1
