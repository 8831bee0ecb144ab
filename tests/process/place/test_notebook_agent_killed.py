"""R2-16: a notebook in which the agent is killed, cells run on, and the cell with `init` is run again.

What is right: other cells work, log counts and at most one warning comes, init again gives a working run; there is no
hook per cell, so that no hook of ours can break a cell or get arguments that it does not know.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .. import scripts

# runs cells in a kernel, as nbclient does, and prints what they showed
DRIVER = """
import json, sys
import nbformat
from nbclient import NotebookClient
cells = json.load(sys.stdin)
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
print(json.dumps([[dict(output) for output in cell["outputs"]] for cell in notebook.cells]))
"""

INIT = """
import logclient
run = logclient.init(project="case")
"""

KILL = """
import os, signal, time
while not (agent := run.status()["agent"])["worker"]:
    time.sleep(0.01)
for number in (signal.SIGSTOP, signal.SIGKILL):
    for which in ("worker", "supervisor"):
        os.kill(agent[which], number)
"""

HOOKS = """
calls = []
class Hooks:
    def before(self, info, *more): calls.append(("pre_run_cell", info.raw_cell))
    def after(self, result): calls.append(("post_run_cell", result.success))
    def post(self): calls.append(("post_execute",))
hooks = Hooks()
events = get_ipython().events
events.register("pre_run_cell", hooks.before)
events.register("post_run_cell", hooks.after)
events.register("post_execute", hooks.post)
"""
REGISTERED = (
    "print({name: [repr(call) for call in calls] for name, calls in get_ipython().events.callbacks.items()})"
)

TWO_ARGUMENTS = """
# an IPython that hands the hooks of each cell one argument more than any hook expects (its own of post_execute aside)
events = get_ipython().events
plain = events.trigger
more = {"pre_run_cell": ("more",), "post_run_cell": ("more",)}
events.trigger = lambda event, *args, **kwargs: plain(event, *args, *more.get(event, ()), **kwargs)
"""


def in_kernel(where: Path, cells: list[str]) -> list[list[dict[str, Any]]]:
    """The outputs of each cell."""
    where.mkdir(exist_ok=True)
    process = scripts.start(where, DRIVER, name="driver.py", stdin=-1)
    out, err = process.communicate(json.dumps(cells), timeout=90)
    assert process.returncode == 0, err
    outputs = json.loads(out.splitlines()[-1])
    assert isinstance(outputs, list)
    return outputs


def text_of(outputs: list[dict[str, Any]]) -> str:
    """All that a cell showed; fails where it raised."""
    shown = []
    for output in outputs:
        assert output["output_type"] != "error", "\n".join(output["traceback"])
        shown.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "".join(shown)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "setup", ["pass", HOOKS, TWO_ARGUMENTS], ids=["plain", "other hooks", "one argument more"]
)
def test_notebook_survives_the_death_of_the_agent(tmp_path: Path, run_dir: Path, setup: str) -> None:
    """Worker and supervisor killed: `1+1` is 2, log counts, init again works, at most one warning (R2-16)."""
    log = "for step in range({}, {}): logclient.log(step, {{'loss': step / 2}})"
    outputs = in_kernel(
        tmp_path,
        [
            setup,
            REGISTERED,
            INIT,
            log.format(0, 10) + "\nfirst = run\nprint(first.flush())",
            KILL,
            "1+1",
            log.format(10, 20) + "\nprint(run.status()['accepted'])",
            INIT,
            log.format(20, 30) + "\nprint(run.flush(), run.id != first.id)",
            REGISTERED,
            "logclient.finish()\nfirst.finish()\nprint(run.status()['durable'], first.status()['accepted'])",
        ],
    )
    shown = [text_of(output) for output in outputs]
    assert shown[3].endswith("True\n")
    assert shown[5] == "2"
    assert shown[6].endswith("20\n")
    assert shown[8].endswith("True True\n")
    assert shown[9] == shown[1], "hooks were added"
    assert shown[10].endswith("10 20\n")
    said = [line for text in shown for line in text.splitlines() if line.startswith("logclient: ")]
    assert len([line for line in said if "goes to" not in line and "is in" not in line]) <= 1, said
    scripts.wait_gone()
    first, second = sorted(scripts.runs(run_dir), key=lambda run: run.created_ns)
    assert scripts.steps(first) == list(range(20))
    assert scripts.steps(second) == list(range(20, 30))
    assert first.state.name == second.state.name == "finished"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_cell_that_failed_long_ago_fails_no_run(tmp_path: Path, run_dir: Path) -> None:
    """An error in a cell is shown and forgotten: a kernel that is shut down later has not failed (R2-16)."""
    outputs = in_kernel(tmp_path, [INIT, "1/0", "logclient.log(0, {'loss': 1.0})\nprint(run.flush())"])
    assert outputs[1][0]["ename"] == "ZeroDivisionError"
    assert text_of(outputs[2]).endswith("True\n")
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found) == [0]
    assert found.state.name in ("finished", "terminated")


@pytest.mark.slow
def test_interactive_shell_without_kernel(tmp_path: Path, run_dir: Path) -> None:
    """IPython in a terminal: the same, and the shell's events are as they were (R2-16)."""
    code = f"""
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    before = {{name: list(calls) for name, calls in shell.events.callbacks.items()}}
    log = "logclient.log({{}}, {{{{'loss': 1.0}}}})"
    for cell in ({INIT!r}, {KILL!r}, "1+1", log.format(0), {INIT!r}, log.format(1)):
        result = shell.run_cell(cell)
        assert result.success, cell
    assert before == {{name: list(calls) for name, calls in shell.events.callbacks.items()}}
    """
    env = {**scripts.environment(), "IPYTHONDIR": str(tmp_path / "ipython")}
    scripts.run_well(tmp_path, code, env=env)
    scripts.wait_gone()
    assert sorted(step for found in scripts.runs(run_dir) for step in scripts.steps(found)) == [0, 1]
