"""torch_xla.launch and xmp.spawn: a thread per device, several processes, each start method.

On a CPU torch_xla starts one process with a thread per device. Several processes are had through a plugin that says
that there are four chips: each process believes to be the only one, so ranks are nothing to look at there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lanes import Script, by_pid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIMEOUT_S = 500  # torch_xla is imported in each process that is spawned
STEPS = 10

IMPORTS = """
import torch, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from logclient.integrations.xla import LogclientXLACallback
"""
DEVICES = """
def train(index, callback, settings):
    if callback is None:
        callback = LogclientXLACallback(**settings)
    total = torch.zeros((), device=torch_xla.device())
    for step in range(10):
        total += 1
        callback.log(step, {"total": total, "index": index})
        total.add_(index)
        callback.log(step, {"host": index + 0.5})
        torch_xla.sync()
    assert callback.flush(300)
"""


def start(folder: Path, source: str, devices: int = 2) -> Any:
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
    return Script(folder, IMPORTS + source, env=env).result(TIMEOUT_S)


def expected(rank: int) -> list[tuple[int, dict[str, float]]]:
    device = [(step, {"total": 1.0 + step * (1 + rank), "index": rank}) for step in range(STEPS)]
    return device + [(step, {"host": rank + 0.5}) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("call", "devices"),
    [
        ("torch_xla.launch(train, args=(LogclientXLACallback(), {}), start_method='fork')", 4),
        ("torch_xla.launch(train, args=(LogclientXLACallback(run), {}), start_method='spawn')", 2),
        ("torch_xla.launch(train, args=(LogclientXLACallback(), {}), start_method='forkserver')", 2),
        ("xmp.spawn(train, args=(None, {}), start_method='fork')", 2),
        ("xmp.spawn(train, args=(None, {}), nprocs=1)", 1),
    ],
    ids=["launch fork", "launch spawn", "launch forkserver", "xmp.spawn", "xmp.spawn of one"],
)
def test_each_device_of_a_process_has_its_rank(
    call: str, devices: int, run_dir: Path, tmp_path: Path
) -> None:
    """Cases R2-34, R2-40: one process, a thread and a rank per device; the callback is pickled on the way."""
    source = f"""
{DEVICES}
if __name__ == "__main__":
    run = logclient.init("xla")
    run.log(0, {{"parent": 1.0}})
    {call}
    run.log(1, {{"parent": 2.0}})
    print(json.dumps(os.getpid()))
"""
    parent = start(tmp_path, source, devices)
    found = by_pid()
    assert len(found) == (1 if devices == 1 else 2)
    _, records = found[parent]
    assert [record.values for record in records if "parent" in record.values] == [
        {"parent": 1.0},
        {"parent": 2.0},
    ]
    assert all(record.rank is None for record in records if "parent" in record.values)
    records = [record for _, records in found.values() for record in records if "parent" not in record.values]
    for rank in range(devices):
        mine = [(record.step, record.values) for record in records if record.rank == rank]
        assert sorted(mine, key=repr) == sorted(expected(rank), key=repr)
    assert len(records) == 2 * STEPS * devices


def test_threads_begin_one_run(run_dir: Path, tmp_path: Path) -> None:
    """Where the parent has none, the first thread that logs begins it and the others join it."""
    source = f"""
{DEVICES}
if __name__ == "__main__":
    torch_xla.launch(train, args=(None, {{"project": "late", "name": "one"}}), start_method="fork")
    print(json.dumps(os.getpid()))
"""
    parent = start(tmp_path, source, 4)
    ((child, (file, records)),) = by_pid().items()
    assert child != parent and file.document("start")["project"] == "late"
    assert {record.rank for record in records} == {0, 1, 2, 3} and len(records) == 8 * STEPS


def test_records_of_a_step_that_never_ended_are_counted(run_dir: Path, tmp_path: Path) -> None:
    """Logged after the last sync; what waits for torch_xla's thread at the program's end is stored, without a flush."""
    source = """
if __name__ == "__main__":
    callback = LogclientXLACallback(project="unended")
    value = torch.ones((), device=torch_xla.device())
    for step in range(20):
        callback.log(step, {"x": value * step})
        torch_xla.sync()
    for step in range(20, 23):
        callback.log(step, {"x": value * step})
    print(json.dumps(os.getpid()))
"""
    process = start(tmp_path, source)
    file, records = by_pid()[process]
    assert [(record.step, record.values) for record in records] == [
        (step, {"x": float(step)}) for step in range(20)
    ]
    assert file.refused == 3 and "torch_xla.sync()" in str(file.document("notices"))


def test_copy_made_before_the_run_logs_nothing_and_says_so(run_dir: Path, tmp_path: Path) -> None:
    """There is no run that it could belong to; the training goes on."""
    source = f"""
{DEVICES}
if __name__ == "__main__":
    torch_xla.launch(train, args=(LogclientXLACallback(project="x"), {{}}), start_method="fork")
    print(json.dumps("over"))
"""
    script = Script(
        tmp_path,
        IMPORTS + source,
        env={"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "LOGCLIENT_QUIET": ""},
    )
    out, err = script.process.communicate(timeout=TIMEOUT_S)
    assert script.process.returncode == 0 and "over" in out
    assert err.count("logclient.init before torch_xla.launch") == 1
    assert not by_pid()


PROCESSES = """
class FourChips:
    def physical_chip_count(self):
        return 4

    def configure_multiprocess(self, rank, size):
        pass


def train(index, callback, folder):
    number = int(os.environ["PJRT_LOCAL_PROCESS_RANK"])
    callback.log(0, {"number": number, "here": 0.5})
    value = torch.ones((), device=torch_xla.device()) * number
    callback.log(1, {"value": value})
    torch_xla.sync()
    assert callback.flush(300)
    open(f"{folder}/{number}", "w").close()
    deadline = time.monotonic() + 300  # all have logged before the first one ends: torch_xla stops the others then
    while len(os.listdir(folder)) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    if number in (0, 1):
        os._exit(3)
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from concurrent.futures.process import BrokenProcessPool

    from torch_xla._internal import pjrt

    pjrt.plugins.using_dynamic_plugins = lambda: True
    pjrt.plugins.default = FourChips
    method, folder = sys.argv[1:]
    run = logclient.init("xla")
    run.log(0, {"parent": 1.0})
    try:
        xmp.spawn(train, args=(LogclientXLACallback(), folder), start_method=method)
    except BrokenProcessPool:
        pass
    run.log(1, {"parent": 2.0})
    print(json.dumps(os.getpid()))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_are_told_apart_and_end_as_they_like(method: str, run_dir: Path, tmp_path: Path) -> None:
    """Case R2-34: each has lanes of its own under its PID; os._exit and SIGKILL end no run but their own part."""
    folder = tmp_path / "there"
    folder.mkdir()
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "OMP_NUM_THREADS": "1"}
    parent = Script(tmp_path, IMPORTS + PROCESSES, method, folder, env=env).result(TIMEOUT_S)
    found = by_pid()
    own, records = found.pop(parent)
    assert [record.values for record in records] == [{"parent": 1.0}, {"parent": 2.0}]
    assert own.document("state")["state"] == "finished"
    assert len(found) == 4
    numbers = []
    for file, records in found.values():
        number = records[0].values["number"]
        assert [record.values for record in records] == [
            {"number": number, "here": 0.5},
            {"value": float(number)},
        ]
        assert file.document("start")["role"] == "member" and file.document("state") is None
        numbers.append(number)
    assert sorted(numbers) == [0, 1, 2, 3]


def test_fastai_with_a_learner_per_device(run_dir: Path, tmp_path: Path) -> None:
    """fastai on several cores: the callback is shared by the threads; each learner's batches have its rank."""
    source = """
from fastai.basics import Callback, DataLoader, DataLoaders, Learner, MSELossFlat
from torch.utils.data import TensorDataset

class Reference(Callback):
    order = 90
    def after_batch(self):
        if self.training:
            losses.append((torch_xla.runtime.global_ordinal(), self.learn.loss.item()))

losses = []

def train(index, callback, path):
    x = torch.linspace(-1, 1, 64)[:, None]
    data = TensorDataset(x, (index + 1) * x)
    loader = DataLoader(data, bs=16, num_workers=0)
    learn = Learner(
        DataLoaders(loader, loader, device=torch_xla.device()),
        torch.nn.Linear(1, 1),
        MSELossFlat(),
        cbs=[callback, Reference()],
    )
    with learn.no_logging():
        learn.fit(2, 0.1)
    assert callback.flush(300)
    with open(f"{path}/{index}.json", "w") as file:
        json.dump([loss for rank, loss in losses if rank == index], file)

if __name__ == "__main__":
    run = logclient.init("fastai")
    torch_xla.launch(train, args=(LogclientXLACallback(sync=True), sys.argv[1]), start_method="fork")
    print(json.dumps(os.getpid()))
"""
    env = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    parent = Script(tmp_path, IMPORTS + source, tmp_path, env=env).result(TIMEOUT_S)
    ((_, records),) = (found for process, found in by_pid().items() if process != parent)
    for rank in range(2):
        losses = [
            (record.step, record.values["batch/loss"])
            for record in records
            if record.rank == rank and "batch/loss" in record.values
        ]
        wanted = json.loads((tmp_path / f"{rank}.json").read_text())
        assert losses == list(enumerate(wanted, 1)) and len(wanted) == 8
