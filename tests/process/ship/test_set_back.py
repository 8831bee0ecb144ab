"""The collector's data folder is an older one all of a sudden: a file system's snapshot, a copy that was put back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools.collector import Collector

from .. import hosts as two_hosts
from ..disturbed import Trainer
from ..hosts import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_was_acknowledged_and_is_gone_is_sent_again(run_dir: Path, tmp_path: Path, home: Path) -> None:
    """The store has the same name and less in it: a live run fills it up from its run folder, each record once."""
    collector = Collector(tmp_path / "collector")
    try:
        collector.start()
        trainer = Trainer(
            tmp_path, {**two_hosts.PATIENT, **collector.env}, rate=500, values=4, until_told=True
        )
        trainer.wait_shipped_more()
        assert collector.stop() == 0
        shutil.copytree(collector.data, tmp_path / "snapshot")
        collector.start()
        trainer.wait_logged_more(500)
        trainer.wait_caught_up()
        collector.kill()
        shutil.rmtree(collector.data)
        (tmp_path / "snapshot").rename(collector.data)
        collector.start()
        trainer.wait_logged_more(100)
        status = trainer.tell_to_end()
        trainer.wait_gone(PATIENCE_S)
        assert status["durable"] == trainer.logged
        assert collector.stop() == 0
    finally:
        collector.kill()
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: trainer.logged})
