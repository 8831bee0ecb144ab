"""Alerts while disks hang: that of the interpreter, and that of the file of targets."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient_backend.alerts.delivery import Delivery
from logclient_backend.alerts.target_file import OK, SILENT
from tests.backend.alerts.test_delivery import event, targets_of
from tests.certificates import Authority
from tests.hooks import hooks, look_until, target_file, webhook
from tools.faults import fuse

_SEND = """
import os, sys, time
from logclient_backend.alerts import webhook
from logclient_backend.alerts.delivery import Delivery
from tests.backend.alerts.test_delivery import event

webhook.prepare()
delivery = Delivery(sys.argv[1])
while not delivery.file.state:
    delivery.look()
    time.sleep(0.01)
delivery.offer(1, event())
os.path.exists("/proc/from-here-on")
until = time.monotonic() + 60
while not delivery.is_idle and time.monotonic() < until:
    delivery.look()
    time.sleep(0.01)
os.write(1, str(delivery.report()["targets"]["team"]["delivered"]).encode())
os._exit(0)
"""
# of the system, where a host is looked up by name
_SYSTEM = ("/etc/", "/proc/", "/run/")


@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_delivery_over_https_opens_no_file_of_the_interpreter(host: str, tmp_path: Path) -> None:
    """Neither Python nor OpenSSL nor the C library: code, certificates and tables are in memory."""
    authority = Authority(tmp_path / "ca")
    trace = tmp_path / "trace"
    with hooks(authority.certificate("good")) as served:
        url = served.url.replace("127.0.0.1", host)
        text = f'ca = "{authority.folder / "ca.pem"}"\n' + webhook("team", f"{url}/ok")
        path = target_file(tmp_path, text)
        words = ["strace", "-f", "-e", "trace=file", "-o", str(trace), sys.executable, "-c", _SEND, str(path)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=200, cwd=Path(__file__).parents[3]
        )
        assert (done.stdout, len(served.came)) == ("1", 1), done.stderr
    lines = trace.read_text().splitlines()
    start = max(at for at, line in enumerate(lines) if "/proc/from-here-on" in line)
    assert sum("site-packages/requests" in line for line in lines[:start]) > 10, "it is noted at all"
    for line in lines[start:]:
        _, found, rest = line.partition('"')
        assert not found or rest.startswith(('"', *_SYSTEM)), line


@pytest.mark.root
@pytest.mark.timeout(240)
def test_file_on_a_disk_that_hangs_stops_nothing(tmp_path: Path) -> None:
    """The content read before is used; once the disk answers the file is read again."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    now = [1000.0]
    with hooks() as served, fuse.Fuse() as mount:
        path = target_file(mount.path, webhook("team", f"{served.url}/ok"))
        delivery = Delivery(str(path), clock=lambda: now[0])
        look_until(delivery, lambda: delivery.file.state == OK, "it is read")
        mount.hang("getattr", "open", "read")
        try:
            now[0] += 10
            delivery.offer(1, event())
            begun = time.monotonic()
            look_until(delivery, lambda: len(served.came) == 1, "the event is sent")
            assert delivery.file.state == SILENT and "may hang" in delivery.file.trouble
            assert time.monotonic() - begun < 30
        finally:
            mount.release()
        now[0] += 10
        delivery.offer(2, event())
        look_until(delivery, lambda: targets_of(delivery)["team"]["delivered"] == 2, "the next one, too")
        now[0] += 10
        delivery.offer(3, event())
        look_until(delivery, lambda: delivery.file.state == OK, "the file is read again")
        delivery.close()
