"""Nothing public but `init` and readers raises; what is too long is cut and said, and nothing accepted is swept."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import BadArgument, NullRun
from logclient.encode import about
from logclient.session.waiting import seconds
from logclient.shm import documents
from tests.lanes import Script, opened
from tests.listing import listed


class Odd:
    """Raises whatever is asked of it."""

    def _fail(self, *arguments: object) -> Any:
        raise ValueError("odd")

    __str__ = __repr__ = __float__ = __index__ = __eq__ = __lt__ = __bool__ = __iter__ = __len__ = _fail
    __hash__ = None  # type: ignore[assignment]


ODD = [
    None,
    "10",
    "",
    b"x",
    [1],
    {},
    {1: 2},
    object,
    Odd(),
    True,
    1j,
    float("nan"),
    float("-inf"),
    -1,
    10**400,
    5,
    lambda: 1,
]


def calls(run: Any, odd: Any) -> list[Callable[[], Any]]:
    """Every public way in with one odd argument."""
    return [
        lambda: run.log(odd, odd),
        lambda: run.log(1, odd),
        lambda: run.as_rank(odd).log(1, {"a": odd}),
        lambda: run.alert(odd, odd, odd),
        lambda: run.config.update(odd),
        lambda: run.config.update({"a": odd}, b=odd),
        lambda: run.config.__setitem__("a", odd),
        lambda: run.config.__ior__(odd),
        lambda: setattr(run, "config", odd),
        lambda: setattr(run, "summary", odd),
        lambda: setattr(run, "tags", odd),
        lambda: setattr(run, "tags", [odd]),
        lambda: logclient.watch(odd, run=run),
        lambda: logclient.watch(odd, every=odd, run=run),
        lambda: logclient.unwatch(odd),
        lambda: run.status() and repr(run) and run._repr_html_(),
        lambda: pickle.dumps(run),
    ]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_arguments_raise_nowhere(number: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an open run, a finished one, a disabled one, and where there is none: taken by default value, said once."""
    odd: Any = ODD[number]
    monkeypatch.setenv("LOGCLIENT_FLUSH_TIMEOUT_S", "0.02")
    monkeypatch.setattr(logclient, "_run", None)
    for call in (
        lambda: logclient.flush(odd),
        lambda: logclient.finish(odd, state=odd),
        lambda: logclient.log(odd, odd),
    ):
        call()
    with opened() as (run, _):
        patience = 0.02 if type(odd) in (int, float) and seconds(odd) else odd
        for call in calls(run, odd):
            call()
        assert run.flush(patience) is False
        before = len(run.status()["notices"])
        for call in calls(run, odd):
            call()
        assert len(run.status()["notices"]) == before, "said once"
        assert run.finish(patience, state=odd) is False
        assert run.status()["state"] == "finished"
        for call in calls(run, odd):
            call()
        assert run.finish(odd, state=odd) is False
    off = logclient.init("p", mode="disabled")
    for null in (off, NullRun("", {}, (), closed="it is over")):
        for call in calls(null, odd):
            call()
        assert null.flush(odd) and null.finish(odd, state=odd)


def test_seconds() -> None:
    """Every wait has a deadline, whatever a user gives as one."""
    taken = {
        1: 1.0,
        0.5: 0.5,
        -3: 0.0,
        Decimal("1.5"): 1.5,
        float("inf"): 86_400.0,
        10**400: 86_400.0,
        -(10**400): 0.0,
    }
    for given, expected in taken.items():
        assert seconds(given) == expected, given
    for odd in ("10", "", True, float("nan"), None, [1], Odd(), object):
        assert seconds(odd) is None


def test_assigned_config_is_the_whole_of_it(run_dir: Path) -> None:
    """`run.config = {...}` and `|=`, as people write them."""
    with opened(config={"old": 1}) as (run, file):
        run.config = {"lr": 0.1}
        run.config |= {"deep": {"a": 1}}
        run.summary = {"best": 1}
        run.config = 5
        assert file.document("config") == dict(run.config) == {"lr": 0.1, "deep": {"a": 1}}
        assert file.document("summary") == {"best": 1}
        run.config = {}
        assert file.document("config") == {}


def test_what_is_too_long_is_cut_and_said(run_dir: Path) -> None:
    """Names, notes, tags: in init and when set; the shm directory stays small."""
    long = "n" * (1 << 20)
    with opened(long, name=long, group=long, notes=long * 70, tags=[long] * 2_000) as (run, file):
        about_run = file.document("about")
        assert (len(run.project), len(run.name), len(about_run["group"])) == (about.MAX_NAME,) * 3
        assert len(about_run["notes"]) == about.MAX_NOTES
        assert len(about_run["tags"]) == about.MAX_TAGS and len(about_run["tags"][0]) == about.MAX_TAG
        said = " ".join(run.status()["notices"])
        assert all(
            what in said
            for what in ("project of 1,048,576", "name of", "group of", "notes of 73,400,320", "2,000 tags")
        )
        assert all(
            path.stat().st_size < 64 << 10 for path in listed(Path(run._session.shm_dir.path), "run.json")
        )
        run.tags = ["t" * 1000]
        run.alert(long, long)
        assert len(file.document("about")["tags"][0]) == about.MAX_TAG
        assert len(json.dumps(file.document("notices"))) < 1 << 20


@pytest.mark.parametrize("name", ["id", "dir", "shm_dir", "server"])
def test_what_cannot_be_cut_is_refused_in_init(name: str, run_dir: Path) -> None:
    """Another id would be another run."""
    with pytest.raises(BadArgument, match="at most"):
        logclient.init("p", **{name: "h" * 100_000})


def test_document_that_grows_without_end_keeps_its_last_whole_state(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change too many is taken back and said; later ones are stored."""
    monkeypatch.setattr(documents, "MAX_BYTES", 1 << 20)
    with opened() as (run, file):
        for number in range(40):
            run.config[f"k{number}"] = "x" * 60_000
        kept = len(run.config)
        assert 10 < kept < 40 and len(file.document("config")) == kept
        run.config["last"] = 1
        assert file.document("config")["last"] == 1
        assert any("a change of config is not stored" in line for line in run.status()["notices"])


def test_lanes_of_a_shm_dir_that_nobody_can_read_are_left_alone(run_dir: Path, tmp_path: Path) -> None:
    """Another run's agent sweeps what lies beside it, and no lane file of which nobody knows whose it is."""
    script = Script(
        tmp_path,
        'logclient.init("p").log(1, {"a": 1.0})\n'
        "print(logclient._run._session.shm_dir.path, flush=True)\nos.kill(os.getpid(), 9)",
    )
    shm_dir = script.process.communicate(timeout=60)[0].strip()
    (lanes,) = listed(Path(shm_dir), "*.lanes")
    (Path(shm_dir) / "run.json").write_text("{")
    os.utime(shm_dir, (time.time() - 3600, time.time() - 3600))
    code = "import logclient; run = logclient.init('q', quiet=True); run.log(1, {'a': 1.0}); assert run.finish(60)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)
    agents = Path(os.environ["LOGCLIENT_SHM_DIR"])
    deadline = time.monotonic() + 60
    while len(listed(agents, "*/*/run.json")) > 1:
        assert time.monotonic() < deadline, "the other run's agent leaves"
        time.sleep(0.02)
    assert lanes.exists()


@pytest.mark.parametrize("kind", ["known", "new", "nested", "text", "bad", "ranked", "closed"])
def test_log_near_the_recursion_limit_is_counted(kind: str, tmp_path: Path, run_dir: Path) -> None:
    """At every depth at which its own frame runs: never raises, logged = accepted + refused, no lane is lost."""
    source = """
    kind = sys.argv[1]
    run = logclient.init()
    ranked = run.as_rank(1)
    run.log(0, {"a": 1.0})
    if kind == "closed":
        run.finish(0)
    calls, raised = 1, []
    log = ranked.log if kind == "ranked" else run.log
    def metrics(n):
        deep = {"a": {"b": {"c": n}}}
        kinds = {"new": {f"k{n}": 1.0}, "nested": deep, "text": {"t": "x", "i": n}, "bad": {"a": object()}}
        return kinds.get(kind, {"a": 1.0})
    def dive(n):
        global calls
        try:
            dive(n + 1)
        except RecursionError:
            pass
        given = metrics(n)
        calls += 1
        try:
            log(n, given)
        except BaseException as error:
            raised.append(n)
    sys.setrecursionlimit(400)
    dive(0)
    sys.setrecursionlimit(1000)
    run._session.counters.publish()
    status = run.status()
    free = 0 if run._session.lanes is None else len(run._session.lanes.first) + len(run._session.lanes.others)
    print(json.dumps([calls, status["accepted"], status["refused"], status["left_out"], raised, free]))
    """
    calls, accepted, refused, left_out, raised, free = Script(tmp_path, source, kind).result()
    assert not raised and calls == accepted + refused and calls > 300
    assert kind != "bad" or left_out >= accepted - 1
    assert free == (0 if kind == "closed" else 4)
    assert kind == "closed" or accepted > 300
