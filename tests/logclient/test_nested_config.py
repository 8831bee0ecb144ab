"""Settings as users hold them: objects with fields become nested settings, a bad entry costs itself, cuts are named."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import pathlib
import signal
import types
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.encode import nested_config as nested
from tests.lanes import opened


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Optim:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)


@dataclasses.dataclass
class Top:
    optim: Optim = dataclasses.field(default_factory=Optim)
    out: pathlib.Path = pathlib.Path("/data")
    colour: Colour = Colour.RED
    layers: dict[str, Any] = dataclasses.field(default_factory=lambda: {"a": [Optim(), 2]})


OPTIM = {"lr": 0.1, "betas": [0.9, 0.999]}
TOP = {"optim": OPTIM, "out": "/data", "colour": "Colour.RED", "layers": {"a": [OPTIM, 2]}}


def by_pydantic() -> Any:
    pydantic: Any = pytest.importorskip("pydantic")

    class Part(pydantic.BaseModel):  # type: ignore[misc]
        k: list[int] = pydantic.Field(default_factory=lambda: [1, 2])
        secret: pydantic.SecretStr = pydantic.SecretStr("hidden")
        path: pathlib.Path = pathlib.Path("/p")

    class Whole(pydantic.BaseModel):  # type: ignore[misc]
        lr: float = 0.1
        part: Part = Part()

    return Whole()


def by_attrs() -> Any:
    attrs: Any = pytest.importorskip("attrs")

    @attrs.define
    class Whole:
        lr: float = 0.1
        optim: Optim = attrs.field(factory=Optim)

    return Whole()


def by_omegaconf() -> Any:
    omegaconf: Any = pytest.importorskip("omegaconf")
    made = {
        "a": {"lr": 0.1},
        "b": "${a.lr}",
        "l": [1, {"x": 2}, "???"],
        "m": "???",
        "n": "${nowhere}",
        "o": None,
    }
    return omegaconf.OmegaConf.create(made)


def by_structured() -> Any:
    omegaconf: Any = pytest.importorskip("omegaconf")
    return omegaconf.OmegaConf.structured(Optim)


MAKERS = [
    (lambda: Top(), TOP),
    (lambda: argparse.Namespace(lr=0.1, sub=argparse.Namespace(top=Top())), {"lr": 0.1, "sub": {"top": TOP}}),
    (lambda: types.SimpleNamespace(lr=0.1, optim=Optim()), {"lr": 0.1, "optim": OPTIM}),
    (lambda: collections.OrderedDict(optim=Optim()), {"optim": OPTIM}),
    (lambda: types.MappingProxyType({"optim": Optim()}), {"optim": OPTIM}),
    (by_pydantic, {"lr": 0.1, "part": {"k": [1, 2], "secret": "**********", "path": "/p"}}),
    (by_attrs, {"lr": 0.1, "optim": OPTIM}),
    (by_structured, OPTIM),
    (
        by_omegaconf,
        {
            "a": {"lr": 0.1},
            "b": 0.1,
            "l": [1, {"x": 2}, "<raised MissingMandatoryValue>"],
            "m": "<raised MissingMandatoryValue>",
            "n": "<raised InterpolationKeyError>",
            "o": None,
        },
    ),
]


@pytest.mark.parametrize(("make", "expected"), MAKERS)
def test_an_object_with_settings_is_a_config(run_dir: Path, make: Any, expected: dict[str, Any]) -> None:
    """Whole in `init` and `update`, nested under a key and in a list, in a disabled run too."""
    with opened(config=make()) as (run, file):
        assert file.document("config") == expected
        run.config.update({"nested": make(), "listed": [make()]})
        assert file.document("config")["nested"] == expected
        assert file.document("config")["listed"] == [expected]
        run.summary.update(make())
        assert file.document("summary") == expected
        assert run.status()["refused"] == 0
    disabled = logclient.init(config=make(), mode="disabled")
    assert list(disabled.config) == list(expected)


def test_what_has_no_names_is_no_config(run_dir: Path) -> None:
    """Said at once, before a run begins."""
    for config in (3, "lr", [1, 2], Optim, object()):
        with pytest.raises(logclient.BadArgument, match="expected a dict of settings, or an object"):
            logclient.init(config=config)
    assert not run_dir.exists()


class Raising:
    """Every attribute raises, as does its text."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __str__(self) -> str:
        raise RecursionError


@dataclasses.dataclass
class Lazy:
    fine: int = 1

    @property
    def other(self) -> int:
        raise RuntimeError("not there")


Lazy.__dataclass_fields__ = {**Lazy.__dataclass_fields__, "other": Lazy.__dataclass_fields__["fine"]}


class Selfish(dict[str, Any]):
    """A mapping whose entries are it."""

    def __getitem__(self, key: str) -> Any:
        if key == "bad":
            raise ValueError(key)
        return self if key == "me" else super().__getitem__(key)


def test_a_bad_entry_costs_that_entry(run_dir: Path) -> None:
    """A property that raises, a `__getattr__` that raises, an item that raises, one that holds itself."""
    config = {"raising": Raising(), "lazy": Lazy(), "own": Selfish(me=1, bad=2, x=3), "ok": 1}
    with opened(config=config) as (run, file):
        assert file.document("config") == {
            "raising": "<Raising>",
            "lazy": {"fine": 1, "other": "<raised RuntimeError>"},
            "own": {"me": "...", "bad": "<raised ValueError>", "x": 3},
            "ok": 1,
        }
        assert any(
            "lazy.other of a config or summary cannot be had" in line for line in run.status()["notices"]
        )


class Alarm(Exception):
    """What the user's handler raises."""


def test_what_a_signal_handler_raises_passes_through(run_dir: Path) -> None:
    """While a property of the user's is read, too."""

    def on_alarm(number: int, frame: Any) -> None:
        raise Alarm

    class Slow(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with opened() as (run, file):
            with pytest.raises(Alarm):
                run.config.update({"slow": Slow(a=1)})
            run.config["lr"] = 0.1
            assert file.document("config") == {"lr": 0.1}
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_large_entry_is_cut_inside_and_named(run_dir: Path) -> None:
    """Small settings are whole, wherever they stand: outer levels first, and of one level the largest is cut."""
    large = {str(number): {"x": number} for number in range(30_000)}
    config = {
        "large": large,
        "list": list(range(30_000)),
        "optim": Optim(),
        "deep": {"a": {"b": {"c": [1, 2]}}},
    }
    with opened(config={"first": config, "text": "y" * 100_000, "lr": 0.1}) as (run, file):
        stored = file.document("config")
        first = stored["first"]
        assert (first["optim"], first["deep"], stored["lr"]) == (OPTIM, {"a": {"b": {"c": [1, 2]}}}, 0.1)
        assert len(first["list"]) > 5_000 and len(first["large"]) > 5_000
        assert stored["text"] == "y" * nested.MAX_TEXT + "..."
        notices = run.status()["notices"]
        for name in ("first.large", "first.list", "text"):
            assert any(f"{name} of a config or summary is cut" in line for line in notices), notices


def test_large_texts_leave_room_for_others(run_dir: Path) -> None:
    """100 texts of 60,000 characters are cut evenly; a short one, and one of usual size, are whole."""
    config = {**{f"t{number}": "x" * 60_000 for number in range(100)}, "short": "s", "usual": "u" * 5_000}
    with opened(config=config) as (_, file):
        stored = file.document("config")
        assert (stored["short"], stored["usual"]) == ("s", "u" * 5_000)
        assert {len(stored[f"t{number}"]) > 40_000 for number in range(100)} == {True}
        assert sum(map(len, stored.values())) < nested.MAX_BYTES + 10_000
