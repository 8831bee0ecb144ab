"""Rules of a real run over its own records, as an agent stored them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from logclient.shm import shm_dir as shm_dirs
from logclient_backend.alerts.event import BEGIN, END
from logclient_backend.alerts.facts import Facts
from logclient_backend.alerts.node_alerts import NodeAlerts
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.reader import WalReader
from tests.hooks import hooks, target_file, webhook
from tests.listing import listed

from .. import scripts
from ..disturbed import wait_until

LOSS_SPIKE = Path(__file__).parents[2] / "data" / "loss-spike.csv"

REPLAY = """
    import csv, sys, logclient
    rules = ["spike loss", "nonfinite", "loss > 20", "drop tflops"]
    run = logclient.init("case", id="it", rank=0, alerts=rules)
    with open(sys.argv[1]) as file:
        for row in csv.DictReader(file):
            run.log(int(row["step"]), {key: float(row[key]) for key in ("loss", "tflops")} | {"text": row["origin"]})
    run.flush(60)
    print(run._session.shm_dir.path, flush=True)
    sys.stdin.read()
    run.finish(60)
"""


@pytest.mark.timeout(300)
def test_recorded_loss_spike_of_a_real_run_is_delivered_as_one_episode(run_dir: Path, tmp_path: Path) -> None:
    """Rules by `run.json`, records by the run folder, messages by HTTP: a begin, an end, and nothing else."""
    process = scripts.start(tmp_path, REPLAY, str(LOSS_SPIKE), stdin=subprocess.PIPE)
    try:
        assert process.stdout is not None
        shm_dir = shm_dirs.read(process.stdout.readline().strip())
        assert shm_dir is not None
        with hooks() as served:
            alerts = NodeAlerts(shm_dir, str(target_file(tmp_path, webhook("team", f"{served.url}/ok"))))
            (folder,) = {path.parent for path in listed(run_dir, "it/*/*.wal")}
            for item in WalReader(str(folder)).items():
                if isinstance(item, StreamColumns):
                    alerts.feed_columns(item.stream.hex(), item.columns)

            def look() -> bool:
                alerts.look(Facts(now=time.monotonic(), state="running", stalled="", dropped=0))
                return len(served.came) == 2

            wait_until(look, 60, "begin and end are there")
            assert alerts.close(60)
            begin, end = (content for _, content in served.came)
            assert [(each["kind"], each["key"], each["rank"]) for each in (begin, end)] == [
                ("spike", "loss", 0)
            ] * 2
            assert (begin["phase"], end["phase"]) == (BEGIN, END) and begin["episode"] == end["episode"]
            assert abs(begin["step"] - 31216) <= 1 and end["step"] <= 31250
            assert "at step 31,219" in end["text"]
        process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
