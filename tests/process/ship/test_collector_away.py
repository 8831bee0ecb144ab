"""The collector's name is lost, it dies in mid-batch, the program ends while it is away, and finish meets silence.

C5-2, R2-10.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pace

from .. import hosts as two_hosts
from .. import scripts
from ..agents import WORKER, log_of
from ..disturbed import stored, wait_until
from ..hosts import PATIENCE_S, Hosts

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]

RATE = 400


def test_name_is_lost_for_ten_minutes(hosts: Hosts, run_dir: Path, pace: Pace) -> None:
    """From step 1,000 on nobody knows the collector's name: it is said once, and later all rows are there."""
    trainer = hosts.trainer(by_name=True, rate=RATE, until_told=True)
    wait_until(lambda: trainer.logged >= 1000, PATIENCE_S, "step 1,000")
    trainer.wait_shipped_more()
    with hosts.net.no_name():
        with hosts.net.reset():  # what is open knows the address
            wait_until(lambda: trainer.ship_state == "waiting", PATIENCE_S, "the connection is lost")
        trainer.wait_logged_more(int(RATE * pace.seconds(40)))
        assert trainer.ship_state in ("waiting", "connecting")
    trainer.wait_caught_up()
    trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    assert hosts.collector.stop() == 0
    two_hosts.assert_same(hosts.collector.data, run_dir, {trainer.run_id: trainer.logged})
    two_hosts.assert_few_words(trainer, log_of(run_dir), "collector.test")


def test_collector_dies_in_mid_batch(hosts: Hosts, run_dir: Path, pace: Pace) -> None:
    """kill -9, several times while rows come, started again on the same store: none lost, none twice."""
    trainer = hosts.trainer(rate=4 * RATE, until_told=True)
    for _ in range(pace.count(20, least=2)):
        trainer.wait_shipped_more()
        hosts.collector.kill()
        hosts.collector.start()
    trainer.wait_caught_up()
    trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    assert hosts.collector.stop() == 0
    two_hosts.assert_same(hosts.collector.data, run_dir, {trainer.run_id: trainer.logged})


ENDS_IN_THE_DARK = """
import sys, time
import logclient
run = logclient.init("case")
for step in range(1000):
    run.log(step, {"m0": float(step), "m1": step + 1 / 16})
assert run.flush(60)
print(run.id, flush=True)
sys.stdin.readline()
for step in range(1000, 2000):
    run.log(step, {"m0": float(step), "m1": step + 1 / 16})
begun = time.monotonic()
done = run.finish(50)
print(time.monotonic() - begun, done, flush=True)
"""


def test_finish_during_the_outage(hosts: Hosts, run_dir: Path, tmp_path: Path) -> None:
    """It ends by its deadline and names the command that brings the rest over; that command does."""
    env = {**two_hosts.PATIENT, **hosts.collector.env, "LOGCLIENT_SHIP_LEAVE_S": "1"}
    scripts.write(tmp_path, ENDS_IN_THE_DARK)
    given: Any = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    words = ["env", *(f"{name}={value}" for name, value in env.items()), sys.executable, "train.py"]
    with hosts.net.left.start(words, cwd=tmp_path, **given) as program:
        try:
            assert program.stdout is not None
            run_id = program.stdout.readline().strip()
            with hosts.net.black_hole():
                ended = scripts.end_with(program, "\n", PATIENCE_S)
                took_s, done = ended.out.split()
                assert done == "True", "all is durable, and that is what finish tells"
                assert float(took_s) < 50
                assert ended.code == 0
                said = ended.said[-1]
                assert re.search(r"[1,]000 records are not yet at grpc://10\.77\.0\.2:7788", said), said
                wait_until(lambda: not scripts.agents(), PATIENCE_S, "the agent gives up")
        finally:
            program.kill()
    found = re.search(r"`logclient (sync .*?)`", said)
    assert found is not None, said
    done_by = hosts.logclient(*shlex.split(found[1]))
    assert done_by.returncode == 0, done_by
    assert hosts.collector.stop() == 0
    two_hosts.assert_same(hosts.collector.data, run_dir, {run_id: 2000})


HANGS_AT_THE_END = """
import os, signal, sys, time
import logclient

def rss():
    with open("/proc/self/status") as file:
        return int(dict(line.split(":", 1) for line in file)["VmRSS"].split()[0]) >> 10

run = logclient.init("case", quiet=False)
signal.signal(signal.SIGALRM, lambda number, frame: run.log(10**6, {"m0": 1e6, "m1": 1e6 + 1 / 16}))
print(run.id, run._session.shm_dir.path, flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[1])):
    run.log(step, {"m0": float(step), "m1": step + 1 / 16})
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
before, begun = rss(), time.monotonic()
done = run.finish(3)
took_s = time.monotonic() - begun
signal.setitimer(signal.ITIMER_REAL, 0)
status = run.status()
try:
    print(took_s, done, rss() - before, status["accepted"], flush=True)
    sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_finish_while_the_collector_hangs_and_the_ring_is_full(
    hosts: Hosts, run_dir: Path, tmp_path: Path
) -> None:
    """It gives up at its deadline, also where the metrics' own code logs meanwhile; one Ctrl-C ends the program.

    What was in the ring by then reaches the disk and the collector once they are there again.
    """
    env = {**two_hosts.PATIENT, **hosts.collector.env}
    env |= {"LOGCLIENT_STALL_S": "600", "LOGCLIENT_LANES_BYTES": str(256 << 10)}
    scripts.write(tmp_path, HANGS_AT_THE_END)
    given: Any = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    words = ["env", *(f"{name}={value}" for name, value in env.items()), sys.executable, "train.py", "20000"]
    with hosts.net.left.start(words, cwd=tmp_path, **given) as program:
        worker = 0
        try:
            assert program.stdin is not None and program.stdout is not None
            run_id, shm_dir = program.stdout.readline().split()
            worker = int(wait_until(lambda: _word(shm_dir, WORKER), PATIENCE_S, "there is a worker"))
            with hosts.collector.stopped():
                two_hosts.stop(worker)
                program.stdin.write("\n")
                program.stdin.flush()
                line = program.stdout.readline().split()
                took_s, done, grown_mib = float(line[0]), line[1], int(line[2])
                accepted = int(line[3])
                assert done == "False"
                assert 3 <= took_s < 3 + 30, "by its deadline; a busy machine is no fault of it"
                assert grown_mib < 8
                begun = time.monotonic()
                program.send_signal(signal.SIGINT)
                out, err = program.communicate(timeout=PATIENCE_S)
                assert time.monotonic() - begun < 30, "one Ctrl-C is enough"
                assert out.strip() == "interrupted"
                assert "Traceback" not in err, err
                assert "not on disk" in err and "logclient recover" in err, err
                assert "logclient sync" in err, err
                two_hosts.go_on(worker)
            wait_until(
                lambda: not Path(shm_dir).exists(), PATIENCE_S, "the agent has brought home all there was"
            )
        finally:
            if worker:
                two_hosts.go_on(worker)
            program.kill()
    assert hosts.collector.stop() == 0
    there, here = two_hosts.at_collector(hosts.collector.data, run_id), stored(run_dir)
    assert there.seqs == here.seqs
    assert there.wrong == 0
    assert there.records + there.forgotten == accepted
    assert there.forgotten == here.forgotten > 0, "the ring was full"


def _word(shm_dir: str, index: int) -> int:
    try:
        with open(f"{shm_dir}/agent.status", "rb") as page:
            page.seek(8 * index)
            return int.from_bytes(page.read(8), "little")
    except OSError:
        return 0
