"""C5-4: proxies as the environment names them: with a login, dead, and never on the way to this machine itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logclient.shm import layout
from tools.collector import Collector
from tools.faults.proxy import Proxy

from .. import hosts as two_hosts
from ..agents import log_of
from ..disturbed import Trainer, documents, wait_until
from ..hosts import PATIENCE_S, Hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "p@ss/w:rd%"
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")


def proxied(address: str, **more: str) -> dict[str, str]:
    """Variables for a proxy that wants a login, whose password has signs that had to be escaped."""
    return {"http_proxy": f"http://me:p%40ss%2Fw%3Ard%25@{address}", **more}


@pytest.fixture(autouse=True)
def _no_proxies_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def titles(trainer: Trainer) -> str:
    """Of the agent's processes, with all their arguments."""
    pids = map(trainer.word, (layout.AGENT_SUPERVISOR, layout.AGENT_WORKER, layout.AGENT_SHIPPER))
    return "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if pid)


@pytest.mark.root
def test_login_with_an_escaped_sign_goes_through(hosts: Hosts, run_dir: Path) -> None:
    """The proxy gets user and password as they are meant, and leads to the collector."""
    with Proxy(hosts.collector.address.partition("//")[2], host=hosts.net.right) as proxy:
        proxy.be("login", login=f"me:{PASSWORD}")
        trainer = hosts.trainer(proxied(proxy.address), records=200)
        trainer.end()
        trainer.wait_gone(PATIENCE_S)
        facts = proxy.facts()
    assert set(facts["logins"]) == {f"me:{PASSWORD}"}
    assert facts["asked_for"] == "10.77.0.2:7788"
    assert hosts.collector.stop() == 0
    two_hosts.assert_same(hosts.collector.data, run_dir, {trainer.run_id: 200})


@pytest.mark.root
def test_dead_proxy_means_offline_and_keeps_the_password(hosts: Hosts, run_dir: Path, tmp_path: Path) -> None:
    """One message that names the proxy, nothing that has the password; the rows are in the run folder."""
    err = tmp_path / "err"
    with open(err, "wb") as file:
        trainer = hosts.trainer(
            proxied("10.77.0.2:9", LOGCLIENT_SHIP_LEAVE_S="1"),
            rate=200,
            until_told=True,
            quiet=False,
            stderr=file,
        )
        wait_until(lambda: trainer.ship_state == "waiting", PATIENCE_S, "it is known that there is no way")
        wait_until(lambda: "10.77.0.2:9" in log_of(run_dir), PATIENCE_S, "that is said")
        said = titles(trainer)
        status = trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    said += err.read_text() + log_of(run_dir) + json.dumps(documents(run_dir))
    assert status["durable"] == status["accepted"] == trainer.logged
    assert "proxy 10.77.0.2:9" in status["server"]["error"]
    two_hosts.assert_few_words(trainer, log_of(run_dir), "10.77.0.2:9")
    for secret in (PASSWORD, "p%40ss", "cEBzcy93OnJkJQ", hosts.collector.token):
        assert secret not in said + json.dumps(status)


@pytest.mark.parametrize("exempt", ["", "localhost,127.0.0.1"], ids=["without no_proxy", "with no_proxy"])
def test_loopback_is_reached_without_a_proxy(
    exempt: str, collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """Whatever the variables say, nothing that goes to this machine itself goes through a proxy."""
    with Proxy("127.0.0.1:9") as proxy:
        proxy.be("login", login="nobody")
        trainer = Trainer(
            tmp_path,
            {**two_hosts.PATIENT, **collector.env, **proxied(proxy.address, no_proxy=exempt)},
            records=200,
        )
        trainer.end()
        trainer.wait_gone(PATIENCE_S)
        assert proxy.facts()["connections"] == 0
    assert collector.stop() == 0
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: 200})
