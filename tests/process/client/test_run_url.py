"""`run.url`: the page once a collector has named it, the command before that; `init` and `finish` print it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.collectors import MemoryCollector

from .. import scripts
from ..agents import nothing_left

PAGE = "https://logs.example/team"
UNREACHED = "grpc://127.0.0.1:7"  # nobody listens there

URLS = """
    import json, os, sys, time, logclient
    run = logclient.init("case", id=f"{os.path.basename(os.getcwd())}/1 ä", mode=sys.argv[2])
    urls = [run.url]
    logclient.log(1, {"loss": 0.5})
    until = time.monotonic() + 60
    while sys.argv[1] == "contact" and not run.url.startswith("http") and time.monotonic() < until:
        time.sleep(0.01)
    urls.append(run.url)
    read, write = os.pipe()
    if os.fork() == 0:
        logclient.log(2, {"loss": 0.5})
        os.write(write, run.url.encode())
        os._exit(0)
    os.close(write)
    urls.append(os.read(read, 4096).decode())
    opened = []
    sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" and watched else None)
    watched = True
    run.url
    watched = False
    if sys.argv[1] == "contact":
        assert not opened, opened
    run.finish()
    urls.append(run.url)
    print(json.dumps(urls))
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the config file of trainers and agents; it is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "30")
    return tmp_path / "config" / "logclient"


def run(
    where: Path, until: str = "", mode: str = "online", *, is_there: bool = True
) -> tuple[list[str], str]:
    """What `run.url` was at `init`, later, in a forked child, and after `finish`; and all that was printed."""
    more = {} if is_there else {"env": {**os.environ, "LOGCLIENT_FINISH_TIMEOUT_S": "0.5"}}
    ended = scripts.run_well(where, URLS, until, mode, **more)
    return json.loads(ended.out), ended.err


def test_address_is_known_after_the_first_contact_and_at_once_from_then_on(
    run_dir: Path, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept for the user's later runs, also where the collector is away, and printed at both ends."""
    command = f"logclient ui {run_dir}"

    def page_of(name: str) -> str:
        return f"{PAGE}/#/run/{name}%2F1%20%C3%A4"

    page = page_of("first")
    with MemoryCollector() as collector:
        collector.public_url = PAGE
        monkeypatch.setenv("LOGCLIENT_SERVER", str(collector.address))
        urls, said = run(tmp_path / "first", "contact")
        assert urls[0] in (command, page) and urls[1:] == [page] * 3
        assert said.splitlines()[-1].endswith(f"; page: {page}")
        nothing_left(60)
        kept = config / "pages.json"
        assert json.loads(kept.read_text())["pages"] == {str(collector.address): PAGE}
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(config.stat().st_mode) == 0o700
    page = page_of("second")
    urls, said = run(tmp_path / "second", is_there=False)
    assert urls == [page] * 4
    first, *_, last = [line for line in said.splitlines() if line.startswith("logclient: ")]
    assert first.endswith(f"; page: {page}") and last.endswith(f"; page: {page}")
    urls, said = run(tmp_path / "offline", mode="offline")
    assert urls == [command] * 4 and "page:" not in said
    monkeypatch.setenv("LOGCLIENT_SERVER", UNREACHED)
    urls, _ = run(tmp_path / "unreached", is_there=False)
    assert urls == [command] * 4, "the page of another collector is none of this one's"
    assert run(tmp_path / "disabled", mode="disabled")[0] == [""] * 4


@pytest.mark.parametrize(
    ("public_url", "http_address", "page"),
    [
        ("javascript:alert(1)", ":8123", "http://127.0.0.1:8123"),
        ("https://h/\x1b[31m", "[bad:1", ""),
    ],
)
def test_without_a_public_address_it_is_where_the_collector_listens(
    run_dir: Path,
    tmp_path: Path,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    public_url: str,
    http_address: str,
    page: str,
) -> None:
    """What is no address of a page is not shown, and stops nothing."""
    with MemoryCollector() as collector:
        collector.public_url, collector.http_address = public_url, http_address
        monkeypatch.setenv("LOGCLIENT_SERVER", str(collector.address))
        urls, said = run(tmp_path, "contact" if page else "")
        assert urls[3].partition("/#/run/")[0] == (page or f"logclient ui {run_dir}")
        assert ("page: " in said) == bool(page) and "\x1b" not in said
        nothing_left(60)
        assert collector.records == 2


def test_command_quotes_the_folder(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell takes it."""
    folder = tmp_path / "it's a folder"
    monkeypatch.setenv("LOGCLIENT_DIR", str(folder))
    quoted = str(folder).replace("'", "'\"'\"'")
    assert run(tmp_path)[0] == [f"logclient ui '{quoted}'"] * 4
