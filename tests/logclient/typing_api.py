"""What a user's type checker sees: run by mypy in strict mode, never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import logclient
from logclient import (
    AgentStatus,
    Audio,
    BadArgument,
    Corrupt,
    DeviceStatus,
    Figure,
    File,
    FolderError,
    Histogram,
    Html,
    Image,
    LogclientError,
    Markdown,
    MediaStatus,
    NoRun,
    NullRun,
    RankFailed,
    RankTimeout,
    Run,
    ServerStatus,
    Status,
    Table,
    Text,
    Unsupported,
    Video,
)

run = logclient.init(
    project="digits",
    name="mlp",
    id="one",
    config={"lr": 1e-3, "layers": [1, 2]},
    group="g",
    tags=["baseline"],
    notes="n",
    resume="allow",
    mode="online",
    dir=Path("runs"),
    server="",
    lanes=2,
)
assert_type(run, Run | NullRun)
assert_type(logclient.log(1, {"loss": 0.5, "text": "x", "deep": {"a": 1}}), None)
assert_type(run.log(1, {"loss": 0.5}), None)
assert_type(Image([], "caption", layout="CHW", range=(0.0, 1.0)), Image)
assert_type(Histogram([1.0], bins=8), Histogram)
assert_type(Table([[1, "a"]], columns=["x", "y"]), Table)
for text in (
    Text("a"),
    Markdown("a"),
    Html("a"),
    File(b"a", "name"),
    Audio(b"a"),
    Video("a.mp4"),
    Figure(None),
):
    run.log(1, {"text": text})
assert_type(run.as_rank(3).log(1, {"loss": 0.5}), None)
assert_type(run.flush(), bool)
assert_type(run.flush(timeout_s=1), bool)
assert_type(run.finish(1.5), bool)
assert_type(logclient.flush(), bool)
assert_type(logclient.freeze_support(), None)
assert_type(logclient.finish(), bool)
assert_type(logclient.status(), Status)
assert_type(run.status(), Status)
assert_type(run.status()["agent"], AgentStatus)
assert_type(run.status()["agent"]["disk_silent_s"], float)
assert_type(run.status()["server"], ServerStatus)
assert_type(run.status()["device"], DeviceStatus)
assert_type(run.status()["media"], MediaStatus)
assert_type(run.status()["accepted"], int)
assert_type(run.id, str)
assert_type(run.project, str)
assert_type(run.name, str)
assert_type(run.dir, str)
assert_type(run.url, str)
assert_type(run.tags, tuple[str, ...])
run.alert("title", "text", level="warn")
run.progress(600, "checkpoint")
with logclient.progress(expect_next_s=60.0, what="evaluation"):
    pass
assert_type(run.should_stop(), bool)
assert_type(logclient.should_stop(5), bool)
assert_type(run.as_rank(1).should_save(step=5), bool)
assert_type(logclient.should_save(), bool)
with run.section("data"), logclient.section("decode"):
    pass
assert_type(run.trace(["mypkg"], exclude=["mypkg.fast"]), bool)
assert_type(logclient.trace(("mypkg",)), bool)
run.config["lr"] = 0.1
run.config.update({"a": 1}, b=2)
run.summary["best"] = 0.97
best: float = run.summary["best"]
for key in run.config:
    assert_type(key, str)
with logclient.init("p") as other:
    other.log(1, {})


def train(rate: float) -> str:
    return str(rate)


assert_type(logclient.launch(train, (0.1,), nprocs=2, start_method="fork", timeout_s=60), list[str])
errors: tuple[type[LogclientError], ...] = (BadArgument, Corrupt, FolderError, NoRun, RankFailed, Unsupported)
time_out: type[TimeoutError] = RankTimeout
value_error: type[ValueError] = BadArgument
os_error: type[OSError] = FolderError
version: str = logclient.__version__

assert_type(logclient.watch(object(), every=10, histograms=True, step=lambda: 3, run=run), None)
assert_type(logclient.unwatch(), None)
assert_type(logclient.fingerprint(object(), every=10, replicas="dp0", step=lambda: 3), None)
assert_type(run.fingerprint(object()), None)
assert_type(run.as_rank(3).fingerprint([object()], 10), None)

runs = logclient.read(Path("runs"))
assert_type(runs["mlp"].id, str)
assert_type(runs["mlp"].keys(), list[str])
assert_type(runs[0].series("loss").is_reduced, bool)
assert_type(runs[0].series("loss", buckets=2000).points, int)
assert_type(list(runs[0].series(["loss", "acc"])), list[str])
for each in logclient.read("http://127.0.0.1:7789", token="secret"):
    assert_type(each.state, str)

seeds = runs.where(
    "config.lr < 0.1", group="seeds", tags=["base"], config={"opt": {"name": "adam"}, "lr": {0.1}}
)
assert_type(seeds.source, str)
assert_type("mlp" in seeds, bool)
assert_type(seeds[0].group, str)
assert_type(len(seeds[-3:].by("config.lr")), int)
assert_type(seeds.rows(["loss"]), list[dict[str, Any]])
assert_type(list(seeds.series("loss", first_step=10)), list[str])
assert_type(seeds.band("loss", quantiles=[0.5]).members, tuple[str, ...])
assert_type(seeds[0].series("loss", first_step=1, last_step=2).is_reduced, bool)
try:
    seeds["nothing"]
except LookupError:
    pass

assert_type(
    logclient.edit("mlp", where=Path("runs"), name="a", tags=["b"], untag="c", undo=["notes"]), dict[str, Any]
)
