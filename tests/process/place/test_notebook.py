"""Notebooks, in real kernels driven by nbclient: cells that are run again, restarts, kills, interrupts, loops of runs.

A cell with `init` that is run again starts another run and ends the one before; nothing else that happens to cells or
kernel ends a run early, loses a row, or leaves something behind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pace

from .. import scripts
from ..recipes import recipe
from .test_notebook_agent_killed import text_of

# Does what the lines of standard input say, each a JSON list, and prints what the cells showed, and the text of all
# streams. A cell that is to be interrupted makes a file when it is in the middle. nbclient drops a text that comes
# after its cell is done (the kernel relays descriptor 2 in a thread), so the driver notes all of them.
DRIVER = """
import asyncio, json, os, signal, sys
import nbformat
from nbclient import NotebookClient
from jupyter_client.utils import ensure_async

async def until(condition):
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError

def note_streams(channel, texts):
    receive = channel.get_msg

    async def get_msg(**given):
        message = await ensure_async(receive(**given))
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])
        return message

    channel.get_msg = get_msg

async def main(plan):
    texts = []
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=90, kernel_name="python3", allow_errors=True)
    async with client.async_setup_kernel():
        note_streams(client.kc.iopub_channel, texts)
        for what, *given in plan:
            if what in ("cell", "interrupt"):
                cell = nbformat.v4.new_code_cell(given[0])
                client.nb.cells.append(cell)
                task = asyncio.ensure_future(client.async_execute_cell(cell, len(client.nb.cells) - 1))
                if what == "interrupt":
                    await until(lambda: os.path.exists(given[1]))
                    await ensure_async(client.km.interrupt_kernel())
                await task
            elif what == "restart":
                await ensure_async(client.km.restart_kernel(now=given[0]))
                await ensure_async(client.kc.wait_for_ready(timeout=90))
            elif what == "kill":
                os.kill(client.km.provisioner.pid, signal.SIGKILL)
                await until(lambda: client.km.provisioner.process.poll() is not None)
    cells = [[dict(output) for output in cell["outputs"]] for cell in client.nb.cells]
    print(json.dumps([cells, "".join(texts)]))

asyncio.run(main([json.loads(line) for line in sys.stdin]))
"""

INIT = """
import logclient
run = logclient.init(project="case")
"""
LOG = "for step in range({}, {}): logclient.log(step, {{'loss': step / 2}})"


def drive(where: Path, *plan: Any) -> tuple[list[list[dict[str, Any]]], str]:
    """The outputs of each cell, and the text of all streams; a text in the plan is a cell."""
    where.mkdir(exist_ok=True)
    env = scripts.environment(
        LOGCLIENT_START_TIMEOUT_S="20"
    )  # else a busy machine is told of, instead of the run
    del env["PYTEST_CURRENT_TEST"]  # a kernel that sees it shows nothing of what is written to descriptor 2
    process = scripts.start(where, DRIVER, name="driver.py", stdin=-1, env=env)
    lines = [json.dumps(["cell", step] if isinstance(step, str) else step) for step in plan]
    out, err = process.communicate("\n".join(lines), timeout=300)
    assert process.returncode == 0, err
    outputs, text = json.loads(out.splitlines()[-1])
    return outputs, text


def ended(run_dir: Path) -> list[Any]:
    """The runs, in the order in which they were begun; every agent has left, and nothing of it is there."""
    scripts.wait_gone(60)
    return sorted(scripts.runs(run_dir), key=lambda found: found.created_ns)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cell_with_init_that_is_run_again_ends_the_run_before(tmp_path: Path, run_dir: Path) -> None:
    """Same project and name: one run is open at a time. Other names stay open side by side, an id is joined again."""
    named = "a, b = (logclient.init(project='case', name=name, quiet=True) for name in 'ab')"
    outputs, said = drive(
        tmp_path,
        INIT,
        LOG.format(0, 10) + "\nfirst = run",
        INIT,
        LOG.format(10, 20) + "\nprint(first.id != run.id, logclient.status()['accepted'])",
        "first.log(99, {'loss': 0.0})\nprint(first.status()['refused'], first.flush())",
        "first",
        "run",
        named + "\na.log(1, {'loss': 1.0}); b.log(1, {'loss': 1.0})\nfirst_a = a",
        named + "\nprint(first_a is a, a.log(2, {'loss': 2.0}), run.log(20, {'loss': 10.0}))",
        "ids = [logclient.init(project='case', id='given', quiet=True) for _ in range(2)]\n"
        "ids[1].log(1, {'loss': 1.0})\nprint(ids[0] is ids[1])",
    )
    shown = [text_of(output) for output in outputs]
    assert "True 10\n" in shown[3] and "1 True\n" in shown[4]
    assert (
        said.count(" goes to ") == 2
        and said.count(" is in ") == 1
        and said.count("init() was called again") == 1
    )
    for output, state in ((outputs[5], "finished"), (outputs[6], "running")):
        (result,) = output
        assert result["output_type"] == "execute_result"
        html = result["data"]["text/html"]
        assert state in html and "logclient show" in html and "10 accepted" in html
        assert result["data"]["text/plain"].startswith("<logclient.Run ")
    assert "False None None\n" in shown[8] and "True\n" in shown[9]
    found = ended(run_dir)
    assert [
        (run.name if run.name in "ab" else "", scripts.steps(run)) for run in found if run.id != "given"
    ] == [
        ("", list(range(10))),
        ("", list(range(10, 21))),
        ("a", [1]),
        ("b", [1]),
        ("a", [2]),
        ("b", []),
    ]
    assert {run.state.name for run in found} == {"finished"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kernel_is_restarted_and_killed(tmp_path: Path, run_dir: Path) -> None:
    """Restart: the run is finished, the same cells begin another. Restart at once, kill: killed. All rows are there."""
    cells = (INIT, LOG.format(0, 100))
    drive(tmp_path, *cells, ["restart", False], *cells, ["restart", True], *cells, ["kill"])
    found = ended(run_dir)
    assert [run.state.name for run in found] == ["finished", "killed", "killed"]
    assert [scripts.steps(run) for run in found] == [list(range(100))] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cell_that_fails_or_is_interrupted_ends_no_run(tmp_path: Path, run_dir: Path) -> None:
    """Exception, interrupt in mid-`log`, going on: one run, every accepted row once, and it is finished in the end."""
    loop = """
step = 1000
while True:
    logclient.log(step, {'loss': step / 2})
    step += 1
    if step == 1500: open('there', 'w').close()
    if step % 20 == 0: time.sleep(0.001)
"""
    outputs, _ = drive(
        tmp_path,
        INIT + "import time",
        "for step in range(20):\n    logclient.log(step, {'loss': step / 2})\n    1 / (10 - step)",
        ["interrupt", loop, str(tmp_path / "there")],
        "last = run.status()['accepted']\nlogclient.log(1, {'after': 1.0})\nprint(last, step, run.flush())",
        "try:\n    with logclient.init(project='case', name='block', quiet=True) as block:\n"
        "        block.log(1, {'loss': 1.0}); 1 / 0\nexcept ZeroDivisionError: pass",
        "run.log(2, {'after': 2.0})\nprint(run.status()['refused'], run.status()['accepted'])",
    )
    assert outputs[1][-1]["ename"] == "ZeroDivisionError"
    assert outputs[2][-1]["ename"] == "KeyboardInterrupt"
    last, step, flushed = text_of(outputs[3]).split()[-3:]
    assert int(last) - 11 in (int(step) - 1000, int(step) - 999) and flushed == "True"
    assert text_of(outputs[5]).split()[-2:] == ["0", str(int(last) + 2)]
    run, block = ended(run_dir)
    points = scripts.points(run)
    assert [at for at, _ in points["after"]] == [1, 2]
    logged = [at for at, _ in points["loss"]]
    assert logged == [*range(11), *range(1000, 1000 + int(last) - 11)]
    assert all(value == at / 2 for at, value in points["loss"])
    assert (run.state.name, block.state.name) == ("finished", "failed")


LOOP = """
import gc, os
def held():
    gc.collect()
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    lanes = [line for line in open("/proc/self/maps") if ".lanes" in line]
    return len(os.listdir("/proc/self/fd")), len(lanes), int(lines["RssShmem"].split()[0]), int(lines["Threads"])

def trials(count, finish):
    for trial in range(count):
        run = logclient.init(project="loop", config={"trial": trial}, quiet=True)
        for step in range(50):
            run.log(step, {"loss": step + trial})
        run.summary["best"] = trial
        if finish: run.finish()
    return run
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_loop_of_runs_in_one_cell(tmp_path: Path, run_dir: Path, pace: Pace) -> None:
    """20 runs one after another, finished or not: each has its own rows; descriptors, mappings and memory come back."""
    count = pace.count(100, least=10)
    outputs, _ = drive(
        tmp_path,
        INIT + LOOP,
        "logclient.finish(); trials(2, True); before = held()",
        f"trials({count // 2}, True); middle = held()",
        f"last = trials({count}, False)",
        "last.finish(); after = held(); print(before, middle, after)",
    )
    text = text_of(outputs[4]).strip().splitlines()[-1]
    before, middle, after = (tuple(map(int, part.split(","))) for part in text.strip("()").split(") ("))
    assert before[0] == middle[0] == after[0], text
    assert before[1] == middle[1] == after[1] == 0, text
    assert max(middle[2], after[2]) <= before[2] + 1024, text
    assert before[3] == middle[3] == after[3], text
    found = [run for run in ended(run_dir) if run.project == "loop"][2:]
    assert [run.config["trial"] for run in found] == [*range(count // 2), *range(count)]
    for run in found:
        trial = run.config["trial"]
        assert scripts.points(run)["loss"] == [(step, float(step + trial)) for step in range(50)]
        assert run.state.name == "finished" and run.summary["best"] == trial


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recipe_of_the_page(tmp_path: Path, run_dir: Path) -> None:
    """The cells on the page, run twice over in one kernel: two runs, the first of them ended by the second."""
    cells = [text for _, text in sorted(recipe("Notebooks").files.items())]
    outputs, _ = drive(tmp_path, *cells, *cells)
    assert "text/html" in outputs[len(cells) - 1][-1]["data"]
    for output in outputs:
        text_of(output)
    found = ended(run_dir)
    assert found[0].state.name == "finished"
    # who drives the kernel ends it by a signal where it is not gone in some seconds, as on a busy machine
    assert found[1].state.name in ("finished", "terminated")
    assert [scripts.steps(run, "loss") for run in found] == [list(range(100))] * 2


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_script_that_imports_a_shell_is_no_notebook(tmp_path: Path, run_dir: Path) -> None:
    """Without a shell that lives: two runs of one project stay open, and an exception at the end is the runs' end."""
    code = """
    import IPython.core.interactiveshell
    import logclient
    first, second = (logclient.init(project="case", quiet=True) for _ in range(2))
    first.log(1, {"loss": 1.0})
    second.log(2, {"loss": 2.0})
    raise ValueError("of the script")
    """
    process = scripts.run(
        tmp_path, code, env={**scripts.environment(), "IPYTHONDIR": str(tmp_path / "ipython")}
    )
    assert process.code == 1 and "of the script" in process.err
    found = ended(run_dir)
    assert [scripts.steps(run) for run in found] == [[1], [2]]
    assert all(run.state.name == "failed" and "of the script" in str(run.state) for run in found)
