"""R2-06: a collector that takes everything and never answers, and one that answers every batch with an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient.shm import layout
from tests.conftest import Pace
from tools.collector import Collector
from tools.faults.proxy import Proxy

from .. import hosts as two_hosts
from ..disturbed import Trainer, wait_until
from ..hosts import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RATE, VALUES = 1000, 200
# after a third of the time: what may be under way, and what malloc makes of it. At full length 96 MB are logged.
GROWTH_MIB = {"trainer": 4, "supervisor": 4, "worker": 24, "shipper": 48}


def about(pid: int) -> tuple[float, int, int]:
    """Resident MiB, threads, descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    own = int(status["VmRSS"].split()[0]) - int(status["RssShmem"].split()[0])  # lanes are counted apart
    return own / 1024, int(status["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def pids(trainer: Trainer) -> dict[str, int]:
    words = {
        "supervisor": layout.AGENT_SUPERVISOR,
        "worker": layout.AGENT_WORKER,
        "shipper": layout.AGENT_SHIPPER,
    }
    return {"trainer": trainer.process.pid, **{name: trainer.word(word) for name, word in words.items()}}


def assert_flat(trainer: Trainer, seconds: float) -> None:
    """Log for so long; afterwards all processes are those of the first third, and have what they had then."""
    before: dict[str, int] = {}
    for third in range(3):
        trainer.wait_logged_more(int(RATE * seconds / 3), seconds + PATIENCE_S)
        now = pids(trainer)
        found = {name: about(pid) for name, pid in now.items()}
        if third == 0:
            before, first = now, found
    assert now == before, "one was replaced"
    for name, (mib, threads, descriptors) in found.items():
        assert mib - first[name][0] < GROWTH_MIB[name], f"memory of the {name}"
        # one more or less in the moment of the look: a connection that is tried, a segment that is sealed
        assert abs(threads - first[name][1]) <= (12 if name == "shipper" else 1), f"threads of the {name}"
        assert abs(descriptors - first[name][2]) <= 6, f"descriptors of the {name}"
    assert about(trainer.process.pid)[1] == 1, "threads of the trainer"


@pytest.mark.parametrize("what", ["half_open", "grpc_error"], ids=["never answers", "answers with errors"])
def test_memory_is_flat_and_everything_arrives_once(
    what: str, collector: Collector, run_dir: Path, tmp_path: Path, pace: Pace
) -> None:
    """The backlog lies on disk; when the collector works, it gets everything, also what it had and never answered."""
    with Proxy(collector.address.partition("//")[2]) as proxy:
        # an agent's supervisor loads the code of observers once, some seconds after its start
        own = {"LOGCLIENT_SERVER": f"grpc://{proxy.address}", "LOGCLIENT_OBSERVE": "off"}
        env = {**two_hosts.PATIENT, **collector.env, **own}
        trainer = Trainer(tmp_path, env, rate=RATE, values=VALUES, until_told=True)
        trainer.wait_shipped_more()
        proxy.be(what)
        seconds = pace.seconds(60)
        assert_flat(trainer, seconds)
        wait_until(
            lambda: trainer.logged - trainer.shipped > RATE, PATIENCE_S, "nothing arrives, and it logs on"
        )
        proxy.be("passing")
        proxy.cut()
        trainer.wait_caught_up(PATIENCE_S + seconds)
        trainer.tell_to_end()
        trainer.wait_gone(PATIENCE_S)
    assert collector.stop() == 0
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: trainer.logged})
