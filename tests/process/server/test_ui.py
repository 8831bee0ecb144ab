"""`logclient ui`: the dashboard over a folder, for its user alone, with the folder only read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from logclient_backend.remote.editing import edit
from logclient_backend.runs.edits import Changes
from tests.backend.runs.build import simple_run

pytestmark = [pytest.mark.slow]
PATIENCE_S = 60.0
CHANGES = {"X-Logclient": "1"}


class Ui:
    """A `logclient ui` that runs, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str], printed: Path) -> None:
        self.process = process
        self._printed = printed

    def link(self) -> tuple[str, str]:
        """Address and code of the newest link."""
        found: list[tuple[str, str]] = []

        def is_there() -> bool:
            found[:] = re.findall(r"page +(http://\S+?)/#/login\?code=(\S+)", self._printed.read_text())
            return bool(found)

        wait_until(is_there, lambda: self._printed.read_text())
        return found[-1]

    def browser(self) -> Browser:
        url, code = self.link()
        return Browser(url, code)


class Browser:
    """A session of a browser, by the code of a link."""

    def __init__(self, url: str, code: str) -> None:
        self.url = url
        self._session = requests.Session()
        self.login = self._session.post(
            f"{url}/api/v1/session", headers={**CHANGES, "X-Logclient-Code": code}, timeout=PATIENCE_S
        )

    def runs(self) -> dict[str, dict[str, Any]]:
        answer = self._session.get(f"{self.url}/api/v1/runs", timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return {row["id"]: row for row in answer.json()["runs"]}

    def edit(self, run: str, wish: dict[str, Any]) -> requests.Response:
        """Edit a run, as the page does."""
        url = f"{self.url}/api/v1/run/edit"
        return self._session.post(url, params={"run": run}, json=wish, headers=CHANGES, timeout=PATIENCE_S)

    def has_records(self, run: str, count: int) -> bool:
        return bool(self.runs().get(run, {}).get("records") == count)


def wait_until(holds: Callable[[], bool], otherwise: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.05)


@contextmanager
def ui(folder: Path, cache: Path, name: str = "ui") -> Iterator[Ui]:
    printed = cache.parent / f"{name}.log"
    words = [sys.executable, "-m", "logclient_backend", "ui", str(folder), "--no-open", "--port", "0"]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "DISPLAY": ""}
    with printed.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, text=True, env=env)
    try:
        yield Ui(process, printed)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def facts_of(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Name, inode, mode, size and time of change of all that lies there."""
    return {
        str(path): (found.st_ino, found.st_mode, found.st_size, found.st_ctime_ns)
        for path in sorted([folder, *folder.rglob("*")])
        for found in (path.lstat(),)
    }


def test_runs_are_shown_to_their_user_alone_and_the_folder_is_untouched(tmp_path: Path) -> None:
    """The code of a link counts once; without it, nothing is answered; a later `ui` prints another link."""
    runs, cache = tmp_path / "runs", tmp_path / "cache"
    for name in ("one", "two"):
        simple_run(runs, name, 20)
    edit(str(runs), "one", Changes(tags=["kept"]))
    before = facts_of(runs)
    with ui(runs, cache) as page:
        browser = page.browser()
        assert browser.login.status_code == 200
        wait_until(
            lambda: {id: row["records"] for id, row in browser.runs().items()} == {"one": 20, "two": 20}
        )
        assert browser.runs()["one"]["tags"] == ["kept"], "edits of the folder are shown, too"
        edited = browser.edit("two", {"name": "here"})
        assert (edited.status_code, browser.runs()["two"]["name"]) == (200, "here")
        assert requests.get(f"{browser.url}/api/v1/runs", timeout=PATIENCE_S).status_code == 401
        assert Browser(*page.link()).login.status_code == 401
        with ui(runs, cache, "again") as again:
            assert again.link()[0] == browser.url
            assert again.browser().runs().keys() == {"one", "two"}
            assert again.process.wait(PATIENCE_S) == 0
    assert page.process.returncode == 0
    assert facts_of(runs) == before
    modes = {path.stat().st_mode & 0o077 for path in cache.glob("logclient/ui/*") if path.is_dir()}
    assert modes == {0}


def test_run_is_shown_while_it_trains_and_a_killed_page_comes_back(tmp_path: Path) -> None:
    """New records arrive by themselves; after SIGKILL the next start goes on with the same cache."""
    runs, cache = tmp_path / "runs", tmp_path / "cache"
    runs.mkdir()
    source = (
        "import logclient, sys\n"
        f"run = logclient.init(project='p', id='live', dir={str(runs)!r}, quiet=True)\n"
        "for line in sys.stdin:\n"
        "    for step in range(int(line)): run.log(step, {'loss': 1.0})\n"
        "run.finish()\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, text=True)
    assert trainer.stdin is not None
    try:
        with ui(runs, cache) as page:
            browser = page.browser()
            for count, total in ((10, 10), (5, 15)):
                trainer.stdin.write(f"{count}\n")
                trainer.stdin.flush()
                wait_until(partial(browser.has_records, "live", total))
            assert browser.runs()["live"]["state"] == "running"
            page.process.kill()
            page.process.wait()
        trainer.stdin.close()
        assert trainer.wait(PATIENCE_S) == 0
        with ui(runs, cache, "again") as page:
            browser = page.browser()
            wait_until(lambda: browser.runs().get("live", {}).get("state") == "finished")
            assert browser.runs()["live"]["records"] == 15
    finally:
        trainer.kill()
        trainer.wait()


def test_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """Nothing is made, and the exit code is that of other verbs."""
    words = [sys.executable, "-m", "logclient_backend", "ui", str(tmp_path / "absent")]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=env)
    assert done.returncode == 3 and "there is no folder" in done.stderr
    assert not (tmp_path / "cache").exists()
