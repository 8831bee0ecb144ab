"""GPU state through NVML: a driver that answers, others that hang, fail or crash, and none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests import nvml

from .plant import asked, of, program, why

IDLE = "ready()\ntime.sleep(1000)\n"


def test_devices_stand_beside_the_median_of_the_others_with_their_ranks(
    tmp_path: Path, run_dir: Path
) -> None:
    """Of eight, one is slow, hot and has errors; the ranks by the PIDs that the driver gives."""
    source = (
        "import logclient\n"
        f"run = logclient.init(project='why', name='gpus', dir={str(run_dir)!r}, quiet=True)\n"
        "run.log(0, {'loss': 1.0})\nready()\ntime.sleep(1000)\n"
    )
    library = nvml.library(tmp_path / "driver", nvml.ANSWERS)
    with program(tmp_path, source, count=2, LOGCLIENT_RUN_ID="gpus") as begun:
        pids = ",".join(str(process.pid) for process in (begun[1], begun[0]))
        found, _ = why("gpus", LD_LIBRARY_PATH=library, FAKE_PIDS=pids)
        (node,) = found["gpus"]
        assert node["absent"] == "" and len(node["devices"]) == 8
        assert [each["ranks"] for each in node["devices"][:3]] == [[1], [0], []]
        bad = node["devices"][3]
        assert (bad["sm_mhz"], bad["power_w"], bad["temperature_c"], bad["utilisation"]) == (345, 90.5, 88, 0)
        assert bad["errors"] == ["2 uncorrected ECC errors", "1 remapped rows", "needs a reset"]
        assert bad["throttled"] == ["hardware slowdown", "too hot (hardware)"]
        assert bad["retired_pages"] is None  # the fake has no such function
        others = bad["median_of_others"]
        assert (others["sm_mhz"], others["temperature_c"], others["utilisation"]) == (1980, 61, 100)
        page = asked("gpus", LD_LIBRARY_PATH=library, FAKE_PIDS=pids).stdout
        assert "345 (1980)" in page and "hardware slowdown" in page and "2 uncorrected ECC errors" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "absent"),
    [
        (nvml.HANGS, "the NVIDIA driver gave no answer within 2 s"),
        (nvml.FAILS, "the NVIDIA driver: GPU is lost"),
        (nvml.CRASHES, "the NVIDIA driver gave no answer: the process that asked has failed"),
    ],
    ids=["hangs", "fails", "crashes"],
)
def test_driver_that_gives_no_answer_is_named_and_delays_nobody(
    tmp_path: Path, source: str, absent: str
) -> None:
    """The rest is there, and no process is left."""
    library = nvml.library(tmp_path / "driver", source)
    with program(tmp_path, IDLE) as begun:
        begun_at = time.monotonic()
        found, code = why(*of(begun), LD_LIBRARY_PATH=library)
        assert time.monotonic() - begun_at < 30
        assert found["gpus"] == [{"host": os.uname().nodename, "absent": absent, "devices": []}]
        assert (found["verdict"], code) == ("user code", 3)
        assert absent in asked(*of(begun), LD_LIBRARY_PATH=library).stdout
        assert not left(library), "a child that asked the driver was left"


def left(library: str) -> list[int]:
    """Return the processes that were started with this driver."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and library.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def test_without_a_driver_the_page_has_nothing_about_gpus(tmp_path: Path) -> None:
    """And the JSON one short line."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    with program(tmp_path, IDLE) as begun:
        for library in ("", nvml.library(tmp_path / "driver", nvml.NOT_LOADED)):
            found, _ = why(*of(begun), LD_LIBRARY_PATH=library)
            assert [each["absent"] for each in found["gpus"]] == ["no NVIDIA driver"]
            assert "GPU" not in asked(*of(begun), LD_LIBRARY_PATH=library).stdout
