"""What every test shares: the pace, what root tests need, and a run folder with a shm directory of its own."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from logclient.shm.proc import umask

DEFAULT_PACE = 20.0  # `make test`; 1 is full length, `make soak`
PATIENCE = {  # of the product in tests that start agents: a machine that does much else is no fault to be tested
    "LOGCLIENT_START_TIMEOUT_S": "60",
    "LOGCLIENT_FLUSH_TIMEOUT_S": "60",
    "LOGCLIENT_FINISH_TIMEOUT_S": "60",
    "LOGCLIENT_STALL_S": "20",
}
CAP_SYS_ADMIN = 21  # bit in /proc/PID/status; root in a plain container lacks it


class Pace(float):
    """By how much long waits and repetition counts are scaled down: 1.0 in a soak, more elsewhere."""

    def seconds(self, full: float) -> float:
        return full / self

    def count(self, full: int, least: int = 1) -> int:
        return max(least, round(full / self))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pace",
        type=float,
        default=DEFAULT_PACE,
        metavar="FACTOR",
        help=f"divide long waits and repetition counts by FACTOR (default {DEFAULT_PACE:g}, full length 1)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # what tests start would inherit it from a shell or nohup that started us, and know no Ctrl-C and no hang-up
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    pace = Pace(config.getoption("--pace"))
    if not pace > 0:
        raise pytest.UsageError(f"--pace takes a factor above 0, not {pace:g}.")
    hypothesis.settings.register_profile(
        "logclient",
        max_examples=pace.count(2_000, least=20),
        # Time is asserted by benches, never here: it says more about a loaded machine than about a test.
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
    hypothesis.settings.load_profile("logclient")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set time limits, given for the default pace, groups (mounts are one worker's business), and what is slow."""
    factor = DEFAULT_PACE / config.getoption("--pace")
    if config.getoption("--pace") > 1:
        left_out = [item for item in items if item.get_closest_marker("long") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    default_s = float(config.getini("timeout"))
    begun = set()
    for item in items:
        if item.get_closest_marker("first_is_quick") is not None:
            test = item.nodeid.partition("[")[0]
            if test in begun:
                item.add_marker(pytest.mark.slow)
            begun.add(test)
        if item.get_closest_marker("root") is not None:
            # a namespace made meanwhile keeps copies of other tests' mounts, and their loop devices busy
            item.add_marker(pytest.mark.xdist_group("mounts"))
        if factor <= 1 or config.getoption("timeout", None) is not None:
            continue
        given = item.get_closest_marker("timeout")
        if given is None:
            item.add_marker(pytest.mark.timeout(default_s * factor))
        elif given.args:
            limit = pytest.mark.timeout(given.args[0] * factor, **given.kwargs)
            item.add_marker(limit, append=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None:
        _skip_without_root()


def _skip_without_root() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root")
    status = Path("/proc/self/status").read_text()
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    if not effective >> CAP_SYS_ADMIN & 1:
        pytest.skip("needs root with the right to mount (CAP_SYS_ADMIN)")


@pytest.fixture
def needs_root() -> None:
    """For fixtures that need root: a test that uses them skips like one marked `root`."""
    _skip_without_root()


@pytest.fixture
def pace(request: pytest.FixtureRequest) -> Pace:
    """Divide by it, or ask it: `pace.seconds(60)`, `pace.count(1_000, least=50)`."""
    return Pace(request.config.getoption("--pace"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Settings in the developer's shell reach no test."""
    for name in list(os.environ):
        if name.startswith("LOGCLIENT_"):
            monkeypatch.delenv(name)
    # Tests that last longer than a sample count records, streams and segments; those of host metrics turn them on.
    monkeypatch.setenv("LOGCLIENT_SYSTEM", "off")
    # The developer's server is none of ours. Nobody, root either, can make this folder; matplotlib would.
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.getbasetemp() / "matplotlib"))


@pytest.fixture(autouse=True)
def _umask_is_kept() -> Iterator[None]:
    """A test that leaves another umask behind would make a later one fail."""
    before = umask()
    yield
    after = umask()
    os.umask(before)
    assert after == before, f"the umask was {before:04o} and is {after:04o}"


@pytest.fixture
def patient(_no_settings_from_outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the product are long in this test; whoever measures one sets it himself."""
    for name, value in PATIENCE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run_dir(
    _no_settings_from_outside: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A run folder and a shm directory on tmpfs that only this test uses, set in the environment.

    Afterwards no process that was started with this shm directory is left, nor the shm directory.
    """
    shm_root = tempfile.mkdtemp(prefix="logclient-test-", dir="/dev/shm")
    run_dir = tmp_path / "runs"
    monkeypatch.setenv("LOGCLIENT_DIR", str(run_dir))
    monkeypatch.setenv("LOGCLIENT_SHM_DIR", shm_root)
    monkeypatch.setenv("LOGCLIENT_SPOOL_DIR", str(tmp_path))  # used where a network folder takes nothing
    try:
        yield run_dir
    finally:
        try:
            kill_all_with(f"LOGCLIENT_SHM_DIR={shm_root}")
        finally:
            shutil.rmtree(shm_root, ignore_errors=True)


def kill_all_with(setting: str, timeout_s: float = 10.0) -> None:
    """SIGKILL every process that was started with `setting` in its environment, until none is left.

    More than once, because a supervisor may fork between our look and our signal.
    """
    deadline = time.monotonic() + timeout_s
    while left := _kill_once(setting.encode(), deadline):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Processes {left} with {setting} outlived SIGKILL for {timeout_s:g} s.")
        time.sleep(0.01)


def _kill_once(setting: bytes, deadline: float) -> list[int]:
    """Kill those that there are, all at once, and wait for their end: their locks go later than their environment."""
    found: dict[int, int] = {}
    try:
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
            if pid == os.getpid():
                continue
            try:
                # Opened before the look, so that the signal cannot reach a newcomer with the same PID.
                handle = os.pidfd_open(pid)
            except OSError:
                continue
            found[pid] = handle
            try:
                # A zombie's environment reads empty.
                if setting in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    continue
            except OSError:
                pass  # gone meanwhile, or another user's
            os.close(found.pop(pid))
        for handle in found.values():
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(max(0.0, 1000 * (deadline - time.monotonic())))
    finally:
        for handle in found.values():
            os.close(handle)
    return list(found)
