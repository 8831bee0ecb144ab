"""What the process tests share: a home folder, run folders on disks that can be broken, a user's installation."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.collector import Collector
from tools.faults import frozen, fuse, network

from .hosts import Hosts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _patient(patient: None) -> None:
    """Every test here starts agents."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test's own, in the environment; not the tester's."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return path


@pytest.fixture
def disk(run_dir: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[frozen.LoopExt4]:
    """An ext4 of this test's own, and the run folder on it."""
    if reason := frozen.why_not():
        pytest.skip(reason)
    with frozen.LoopExt4(96) as disk:
        monkeypatch.setenv("LOGCLIENT_DIR", str(disk.path / "runs"))
        yield disk


@pytest.fixture
def mount(run_dir: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[fuse.Fuse]:
    """A FUSE mount of this test's own, which counts as a network file system, and the run folder on it."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    with fuse.Fuse() as mount:
        monkeypatch.setenv("LOGCLIENT_DIR", str(mount.path / "runs"))
        yield mount


@pytest.fixture
def hosts(run_dir: Path, tmp_path: Path, needs_root: None) -> Iterator[Hosts]:
    """A trainer's host and one with a collector on it, which listens; and what may be wrong between them."""
    if reason := network.why_not():
        pytest.skip(reason)
    with network.Network() as net:
        collector = Collector(tmp_path / "collector", host=net.right)
        try:
            collector.start()
            yield Hosts(net, collector, tmp_path)
        finally:
            collector.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Collector]:
    """A `logclient server` of this test's own, not started yet."""
    made = Collector(tmp_path / "data", roles=())
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def listening_server(server: Collector) -> Collector:
    """The same, started; `token` is its administrator's."""
    server.start()
    return server


@pytest.fixture
def collector(tmp_path: Path, home: Path) -> Iterator[Collector]:
    """A collector on loopback that listens, to be fed, killed, stopped, started again; the home is the test's own."""
    made = Collector(tmp_path / "collector")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the packages lie as after `pip install`, not as in development."""
    where = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True, timeout=60)
    (site,) = where.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(
            ("_logclient", "_editable_", "logclient", "__pycache__", "__editable__")
        ):
            (site / entry.name).symlink_to(entry)
    for package in (ROOT / "logclient", ROOT / "backend" / "logclient_backend"):
        (site / package.name).symlink_to(package)
    return where / "bin" / "python"
