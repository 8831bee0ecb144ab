"""Frames of a lane, newest first, while it is written to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import logclient
from logclient.shm import lane_file, layout
from logclient.shm.record import PREFIX
from tests.conftest import Pace
from tests.lanes import opened


def newest_steps(run: logclient.Run) -> list[int]:
    """The steps of the frames in the first lane, newest first."""
    lanes = run._session.lanes
    assert lanes is not None
    header = lane_file.headers(lanes.words)[0]
    frames = lane_file.newest_frames(lanes.mem, header, time.monotonic() + 60)
    return [PREFIX.unpack_from(frame)[3] for frame in frames]


def test_frames_come_newest_first_through_every_lap(run_dir: Path, pace: Pace) -> None:
    """Records of many sizes, laps with padding: the newest record comes first, and none is left out after it."""
    with opened(lanes_bytes=256 << 10) as (run, file):
        for step in range(pace.count(40_000, least=3000)):
            width = 1 + step * 7919 % 300
            run.log(
                step, {f"w{width}": float(step), **{f"k{index}": float(step) for index in range(width % 40)}}
            )
            if step % 50 == 0:
                file.read()  # an agent that keeps up: nothing is forgotten
            if step % 97 == 0:
                found = newest_steps(run)
                assert found == list(range(step, step - len(found), -1))
                assert len(found) > min(step, 20)


def test_damaged_frame_ends_the_way_back(run_dir: Path) -> None:
    """Noise in the ring: what lies before it may be of another lap, and no frame that does not check is returned."""
    with opened() as (run, file):
        for step in range(200):
            run.log(step, {"loss": float(step)})
        whole = newest_steps(run)
        assert whole == list(range(199, -1, -1))
        at = file.words[layout.LANE_HEADERS + layout.LANE_OFFSET]
        file.mem[at + 100 * 56 : at + 100 * 56 + 64] = os.urandom(64)
        found = newest_steps(run)
        assert found[0] == 199 and set(found) < set(whole)
        file.mem[at : at + 64 * 1024] = os.urandom(64 * 1024)
        assert newest_steps(run) == []
        file.words[layout.LANE_HEADERS + layout.TAIL] = 1 << 63
        assert newest_steps(run) == []
