"""Pauses: what ends one, and how long the worker's may be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from logclient.encode.lanes import Lanes
from logclient.shm.wake import WORKER, wake
from logclient_backend.agent.drain.producer import Producer
from logclient_backend.agent.drain.worker_pause import BUSY_S, WorkerPause
from logclient_backend.agent.host.pauses import Pipe, Sleeper
from logclient_backend.agent.host.process_handle import Watch
from logclient_backend.agent.host.shm_dir_handle import Kept
from logclient_backend.agent.settings import Settings

LONG_S = 3600.0


@pytest.fixture
def pipe(handle):
    made = Pipe(handle, WORKER)
    yield made
    os.close(made.fd)


def sleeping_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


@pytest.mark.timeout(20)
def test_wake_up_from_another_thread_ends_an_hour(handle, pipe):
    """The pause is over as soon as a byte is in the pipe; the next pause starts anew."""
    sleeper = Sleeper(pipe)
    threading.Timer(0.05, wake, [handle.shm_dir]).start()
    assert sleeper.sleep(LONG_S)
    assert not sleeper.sleep(0.01)


@pytest.mark.timeout(20)
def test_wake_up_before_the_pause_is_not_lost(handle, pipe):
    """Many wake-ups while the process was awake end one pause."""
    for _ in range(10_000):
        wake(handle.shm_dir)
    sleeper = Sleeper(pipe)
    assert sleeper.sleep(LONG_S)
    assert not sleeper.sleep(0.01)


@pytest.mark.timeout(20)
def test_pipe_serves_the_next_agent(handle, pipe):
    """An agent that is replaced finds the pipe; who opened the old one wakes the new one."""
    again = Pipe(handle, WORKER)
    os.close(pipe.fd)
    pipe.fd = again.fd
    wake(handle.shm_dir)
    assert Sleeper(again).sleep(LONG_S)


@pytest.mark.timeout(20)
def test_end_of_a_process_ends_one_pause(pipe):
    """A dead process keeps its pidfd readable for ever: it ends the pause in which it died, and no other."""
    sleeper = Sleeper(pipe)
    children = [sleeping_child() for _ in range(2)]
    watches = [Watch(child.pid) for child in children]
    try:
        sleeper.watch(watches)
        assert not sleeper.sleep(0.01)
        children[0].kill()
        assert sleeper.sleep(LONG_S)
        for _ in range(3):
            sleeper.watch(watches)
            assert not sleeper.sleep(0.01)
        children[1].kill()
        assert sleeper.sleep(LONG_S)
        watches[0].close()  # as a producer's is when it goes
        sleeper.watch(watches[1:])
        assert not sleeper.sleep(0.01)
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.timeout(20)
def test_new_watch_with_the_descriptor_of_an_old_one_ends_a_pause(pipe):
    """Descriptors are used again: a process that came later is watched, although the last one's end was seen."""
    sleeper = Sleeper(pipe)
    for _ in range(3):
        child = sleeping_child()
        watch = Watch(child.pid)
        try:
            sleeper.watch([watch])
            assert not sleeper.sleep(0.01)
            child.kill()
            assert sleeper.sleep(LONG_S)
        finally:
            child.kill()
            child.communicate()
            watch.close()


def test_without_a_pipe_pauses_stay_short(handle, pipe):
    """A folder that takes no pipe: nobody can end a pause, and the process knows."""
    os.unlink(handle.file(WORKER))
    os.mkdir(handle.file(WORKER))
    sleeper = Sleeper(Pipe(handle, WORKER))
    assert not sleeper.may_be_long
    assert not sleeper.sleep(0.01)
    assert Sleeper(pipe).may_be_long
    assert WorkerPause(Settings({}), 0.0).pause_s(LONG_S, may_be_long=False) == pytest.approx(0.1)


@pytest.fixture
def producers(handle):
    made = []

    def make(size: int) -> tuple[Lanes, Producer]:
        lanes = Lanes(handle.path, size, 4, None)
        lanes.show()
        name = os.path.basename(lanes.path)
        producer = Producer(handle, Kept(handle, name, os.open(lanes.path, os.O_RDWR)))
        made.append(producer)
        return lanes, producer

    yield make
    for producer in made:
        producer.kept.close()


def fill(lanes: Lanes, producer: Producer, records: int) -> None:
    from logclient.encode.shapes import Encoder

    encoder = Encoder(lanes.mem, None, b"\1", None)
    (lane,) = lanes.first
    orders = iter(range(1, records + 1))
    for step in range(records):
        encoder.offer(lane, orders.__next__, step, {"a": float(step)})


def test_pause_follows_the_fastest_rate_and_the_smallest_lane_in_use(producers):
    """A burst that fills half a lane in a second is looked at twice a second ever after; others rest two seconds."""
    pace = WorkerPause(Settings({}), 0.0)
    lanes, producer = producers(4 << 20)
    pace.look([producer], 1.0)
    assert pace.pause_s(2.0 + BUSY_S, may_be_long=True) == 2.0
    fill(lanes, producer, 20_000)
    pace.look([producer], 2.0)
    share = producer.lanes[0].reader.pending / producer.lanes[0].reader.size
    assert pace.has_records and pace.is_filling == (share >= 0.25)
    assert pace.pause_s(2.0, may_be_long=True) == pytest.approx(0.1)
    assert pace.pause_s(3.0 + BUSY_S, may_be_long=True) == pytest.approx(0.25 / share)


def test_lane_file_of_the_least_size_keeps_pauses_short_once_it_is_used(producers):
    """A forked child's few kilobytes are full soon: looked at ten times a second as long as it may log."""
    pace = WorkerPause(Settings({}), 0.0)
    lanes, producer = producers(256 << 10)
    pace.look([producer], 1.0)
    assert pace.pause_s(2 * BUSY_S, may_be_long=True) == 2.0
    fill(lanes, producer, 1)
    pace.look([producer], 2.0)
    assert pace.pause_s(9 * BUSY_S, may_be_long=True) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("facts", "rest_s"),
    [
        ({}, 2.0),
        ({"confined": "a SLURM job"}, 0.25),
        ({"settings": {"stall_s": 0.5}}, 0.2),
        ({"settings": {"stall_s": 0.5}, "confined": "a container"}, 0.2),
    ],
)
def test_rest_is_shorter_where_memory_ends_or_a_worker_would_look_stuck(facts, rest_s):
    """P3 promises the last half second; a worker is taken for stuck after the stall time."""
    assert WorkerPause(Settings(facts), 0.0).pause_s(2 * BUSY_S, may_be_long=True) == rest_s


def test_first_pauses_after_a_newcomer_are_very_short():
    """Until a rate is known, for a second: the newcomer may log as fast as any."""
    pace = WorkerPause(Settings({}), 0.0)
    pace.note_newcomer(LONG_S)
    assert pace.pause_s(LONG_S + 0.5, may_be_long=True) == pytest.approx(0.02)
    assert pace.pause_s(LONG_S + 1.5, may_be_long=True) == pytest.approx(0.1)


def test_words_that_ask_are_told_from_records(producers):
    """Records alone wait for their time; documents, flushes and refusals are looked at with the next look."""
    pace = WorkerPause(Settings({}), 0.0)
    lanes, producer = producers(4 << 20)
    pace.look([producer], 1.0)
    producer.is_asking = False
    fill(lanes, producer, 1)
    pace.look([producer], time.monotonic())
    assert pace.has_records
    producer.is_asking = False  # the first record wrote a shape
    fill(lanes, producer, 1)
    pace.look([producer], time.monotonic())
    assert not pace.is_asked
    from logclient.shm import layout

    for word in (layout.FLUSH_ASKED, layout.DOCUMENTS_WRITTEN, layout.REFUSED, layout.LEFT_OUT, layout.STATE):
        lanes.words[word] += 1
        pace.look([producer], time.monotonic())
        assert pace.is_asked, word
        producer.is_asking = False
        pace.look([producer], time.monotonic())
        assert not pace.is_asked, word
