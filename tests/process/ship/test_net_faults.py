"""A trainer ships live to a collector on another host while everything that can go wrong with a network does.

Training goes on at its pace, nobody is told more than once a minute, and when there is peace the collector has what
was logged: to the record, the value and the step, each once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pace
from tools.faults.proxy import Proxy

from .. import hosts as two_hosts
from ..agents import log_of
from ..disturbed import Trainer
from ..hosts import PATIENCE_S, Hosts

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]

RATE = 400  # records a second
STALL_MS = 2000.0  # a call that waited for a network would take as long as a fault at least, or its deadline


def assert_peace(hosts: Hosts, trainer: Trainer, run_dir: Path) -> None:
    """All is there, and the trainer never felt anything."""
    status = trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    assert hosts.collector.stop() == 0, hosts.collector.said()
    two_hosts.assert_same(hosts.collector.data, run_dir, {trainer.run_id: trainer.logged})
    assert status["accepted"] == trainer.logged  # `finish` need not have waited for the last ack
    assert trainer.longest_ms < STALL_MS
    two_hosts.assert_few_words(trainer, log_of(run_dir), "10.77.0")


Wrong = Callable[[Hosts], contextlib.AbstractContextManager[Any]]
FAULTS: dict[str, tuple[Wrong, ...]] = {
    "silence": (lambda hosts: hosts.net.black_hole(), lambda hosts: hosts.collector.stopped()),
    "refusal": (lambda hosts: hosts.net.reset(), lambda hosts: hosts.net.cable_out()),
    "bad link": (lambda hosts: hosts.net.loss(20), lambda hosts: hosts.net.slow(100)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_cost_nothing_but_time(kind: str, hosts: Hosts, run_dir: Path, pace: Pace) -> None:
    """One after the other, each for as long as it takes to log some seconds' records."""
    trainer = hosts.trainer(rate=RATE, until_told=True)
    trainer.wait_shipped_more()
    for fault in FAULTS[kind]:
        with fault(hosts):
            trainer.wait_logged_more(int(RATE * pace.seconds(20)))
        trainer.wait_caught_up()
    assert_peace(hosts, trainer, run_dir)


def test_proxy_in_between_misbehaves(hosts: Hosts, run_dir: Path, pace: Pace) -> None:
    """Late, cut, one-sided, a captive portal, garbage, an error of 20 MB: between the agent and the collector."""
    with Proxy(hosts.collector.address.partition("//")[2], host=hosts.net.right) as proxy:
        trainer = hosts.trainer({"LOGCLIENT_SERVER": f"grpc://{proxy.address}"}, rate=RATE, until_told=True)
        trainer.wait_shipped_more()
        for what, how in (
            ("delayed", {"seconds": 0.3}),
            ("cutting", {"after": 20_000}),
            ("half_open", {}),
            ("portal", {}),
            ("garbage", {}),
            ("big_error", {}),
            ("grpc_error", {}),
        ):
            proxy.be(what, **how)
            if what not in ("delayed", "cutting"):
                proxy.cut()
            trainer.wait_logged_more(int(RATE * pace.seconds(10)))
            proxy.be("passing")
            trainer.wait_caught_up()
        assert_peace(hosts, trainer, run_dir)
