"""`status()`: one typed shape in every state of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import pytest

import logclient
from logclient import NullRun, Status
from logclient.spawn import agent as spawn
from tests.lanes import Script, opened


def check(value: Any, kind: Any, where: str = "status") -> None:
    """`value` is just what `kind` declares: every key, no other, of the right type."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        assert set(value) == set(hints), where
        for key, hint in hints.items():
            check(value[key], hint, f"{where}[{key!r}]")
    elif get_origin(kind) is Literal:
        assert value in get_args(kind), f"{where} is {value!r}"
    elif get_origin(kind) is list:
        assert type(value) is list and all(type(item) is get_args(kind)[0] for item in value), where
    else:
        assert type(value) is kind, f"{where} is {value!r}"


def test_shape_is_the_same_in_every_state_of_a_process(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disabled, no run, starting, without a page, without memory, finished, and a handle whose run is over."""
    found: list[Status] = [logclient.init("p", mode="disabled").status()]
    found.append(NullRun("", {}, (), closed="the run that this handle belongs to is over").status())
    with opened() as (run, _):
        run.log(1, {"a": 1.0})
        found.append(run.status())
        page, run._session.status_page = run._session.status_page, None
        found.append(run.status())
        run._session.status_page = page
    found.append(run.status())
    assert run.finish(0) is False and repr(run)
    with monkeypatch.context() as patched:
        patched.setattr(spawn, "map_status", lambda shm_dir: None)
        with opened() as (run, _):
            run.log(1, {"a": 1.0})
            assert not run.flush(0)
            found.append(run.status())
        found.append(run.status())
    for status in found:
        check(status, Status)
    states = [(status["state"], status["agent"]["state"]) for status in found]
    assert states == [
        ("disabled", "gone"),
        ("no run", "gone"),
        ("open", "starting"),
        ("open", "gone"),
        ("finished", "starting"),
        ("open", "gone"),
        ("finished", "gone"),
    ]
    assert [status["accepted"] for status in found] == [0, 0, 1, 1, 1, 1, 1]


def test_shape_is_the_same_in_a_forked_child(tmp_path: Path, run_dir: Path) -> None:
    """Before it has logged, and where it gets no lanes: the run's folder is gone."""
    source = """
    run = logclient.init("p")
    found = []
    def child(gone):
        if gone:
            import shutil
            shutil.rmtree(run._session.shm_dir.path)
        told, tell = os.pipe()
        if not os.fork():
            before = run.status()
            run.log(1, {"a": 1.0})
            os.write(tell, json.dumps([before, run.status(), run.finish(0), run.status()]).encode())
            os._exit(0)
        os.wait()
        return json.loads(os.read(told, 1 << 16))
    print(json.dumps([child(False), child(True)]))
    """
    whole, gone = Script(tmp_path, source).result()
    for before, during, _, after in (whole, gone):
        for status in (before, during, after):
            check(status, Status)
        assert (before["state"], before["accepted"], before["refused"]) == ("forked", 0, 0)
        assert after["state"] == "finished"
    assert (whole[1]["state"], whole[1]["accepted"]) == ("open", 1)
    assert (gone[1]["state"], gone[1]["accepted"], gone[1]["refused"]) == ("no memory", 0, 1)


def test_types_are_loaded_when_somebody_asks(tmp_path: Path, run_dir: Path) -> None:
    """A training that asks for none of them does not import `typing` because of us."""
    source = """
    logclient.init("p").log(1, {"a": 1.0})
    before = "logclient.typed" in sys.modules
    names = [logclient.Status.__name__, logclient.AgentStatus.__name__]
    print(json.dumps([before, names, "logclient.typed" in sys.modules]))
    """
    assert Script(tmp_path, source).result() == [False, ["Status", "AgentStatus"], True]
