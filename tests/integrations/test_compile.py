"""Calls of ours inside `torch.compile`: one graph break each, no frame of ours compiled, no warning, right values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.process import scripts

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# what stands before it imports torch and logclient, and begins the run, in different orders
BODY = """
import json
import sys

@torch.compiler.disable
def empty(step, metrics):
    pass

class Theirs:
    pass

from logclient.integrations import guard

class Callback(guard.Guarded, Theirs):
    def __init__(self):
        self._tie = guard.Tie(run, {})

    @guard.hook
    def on_step(self, step, metrics):
        self._here().log(step, metrics)

callback = Callback()
ranked = run.as_rank(3)
bound = run.log

def section(x, step):
    y = (x * 2).sum()
    logclient.section("data")
    return y + 1

def nothing(x, step):
    y = (x * 2).sum()
    empty(step, {"loss": y, "lr": 0.5})
    return y + 1

def module(x, step):
    y = (x * 2).sum()
    logclient.log(step, {"module": y, "lr": 0.5})
    return y + 1

def method(x, step):
    y = (x * 2).sum()
    run.log(step, {"method": y})
    return y + 1

def floats(x, step):
    y = (x * 2).sum()
    bound(step, {"floats": 0.5, "step": step})
    return y + 1

def of_rank(x, step):
    y = (x * 2).sum()
    ranked.log(step, {"of_rank": y})
    return y + 1

def hook(x, step):
    y = (x * 2).sum()
    callback.on_step(step, {"hook": y})
    return y + 1

from torch._dynamo.convert_frame import input_codes
from torch._dynamo.utils import counters

told = {}
for body in (nothing, module, method, floats, of_rank, hook, section):
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(body, backend=sys.argv[1])
    for step in range(20):
        assert float(compiled(torch.full((4,), float(step)), step)) == 8.0 * step + 1
    told[body.__name__] = {"frames": dict(counters["frames"]), "breaks": sum(counters["graph_break"].values())}
    codes = [weak() for weak in input_codes.seen]
    told[body.__name__]["ours"] = [c.co_name for c in codes if c and "/logclient/" in c.co_filename]
try:
    torch.compile(module, fullgraph=True, backend="eager")(torch.ones(4), 0)
except torch._dynamo.exc.Unsupported as error:
    told["fullgraph"] = str(error)
print(json.dumps(told))
run.finish()
"""
ORDERS = {
    "torch first": "import torch, torch._dynamo, logclient\nrun = logclient.init(name='c')\n",
    "dynamo last": "import torch, logclient\nrun = logclient.init(name='c')\n",
    "torch last": "import logclient\nrun = logclient.init(name='c')\nimport torch\n",
    "disabled": "import torch, logclient\nrun = logclient.init(name='c', mode='disabled')\n",
}


def compiled(where: Path, order: str, backend: str) -> Any:
    """What the script reports; fails where anything was written to standard error but our own lines."""
    (where / "train.py").write_text(ORDERS[order] + BODY)
    process = subprocess.Popen(
        [sys.executable, "train.py", backend],
        cwd=where,
        env=scripts.environment(OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=str(where / "cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ended = scripts.end(process, 200)
    assert ended.code == 0, ended
    assert all(line.startswith("logclient: run ") for line in ended.err.splitlines() if line), ended.err
    return json.loads(ended.out)


RECORDED = """
import json, os, sys
import torch, torch._dynamo
import logclient
sys.path.insert(0, os.getcwd())
import mypkg
run = logclient.init(name="c")
from torch._dynamo.convert_frame import input_codes
from torch._dynamo.utils import counters
told = {}
for begin in (lambda: True, lambda: run.trace(["mypkg"])):
    torch._dynamo.reset()
    counters.clear()
    assert begin()
    compiled = torch.compile(mypkg.body, backend="eager", fullgraph=True)
    for step in range(20):
        assert float(compiled(torch.full((4,), float(step)))) == 8.0 * step + 1
    with run.section("step"):
        compiled(torch.ones(4))
    codes = [weak() for weak in input_codes.seen]
    ours = [code.co_name for code in codes if code and "/logclient/" in code.co_filename]
    breaks = sum(counters["graph_break"].values())
    told[len(told)] = {"frames": dict(counters["frames"]), "breaks": breaks, "ours": ours}
from logclient.shm.calls import Calls
calls = Calls(run._session.lanes.path.removesuffix(".lanes") + ".calls").threads(1000)[os.getpid()]
print(json.dumps([told, [call.function for call in calls].count("body")]))
run.finish()
"""


def test_call_recorder_breaks_no_graph(tmp_path: Path, run_dir: Path) -> None:
    """Nor does a section around a compiled function; frames and breaks are those of a program without either."""
    (tmp_path / "mypkg.py").write_text("def body(x):\n    return (x * 2).sum() + 1\n")
    (tmp_path / "train.py").write_text(RECORDED)
    words = [sys.executable, "train.py"]
    env = scripts.environment(OMP_NUM_THREADS="1")
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    told, count = json.loads(done.stdout)
    assert told["0"] == told["1"] and told["1"]["breaks"] == 0 and told["1"]["ours"] == []
    assert count >= 2 * 20


@pytest.mark.parametrize(
    ("order", "backend"),
    [("torch first", "eager"), ("dynamo last", "inductor"), ("torch last", "eager"), ("disabled", "eager")],
)
def test_a_call_is_one_break_and_none_of_our_frames_is_compiled(
    tmp_path: Path, run_dir: Path, order: str, backend: str
) -> None:
    """Frames and breaks are those of an empty function under `torch.compiler.disable`, whatever is imported first."""
    told = compiled(tmp_path, order, backend)
    assert "return them from the compiled function" in told.pop("fullgraph")
    assert told["nothing"]["breaks"] > 0
    section = told.pop("section")
    assert section["breaks"] > 0 and section["ours"] == []
    assert {name: each for name, each in told.items() if each != told["nothing"]} == {}
    assert told["nothing"]["ours"] == []
    if order == "disabled":
        return
    (run,) = logclient.read(run_dir)
    for key in ("module", "method", "of_rank", "hook"):
        series = run.series(key)
        assert dict(zip(series.step.tolist(), series.value.tolist(), strict=True)) == {
            step: 8.0 * step for step in range(20)
        }
    assert len(run.series("floats").step) == 20
