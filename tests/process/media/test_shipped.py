"""Media values at a collector: shipped while the run goes on, by sync afterwards, and given to whoever may read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logclient
from logclient.errors import LogclientError
from tools.collector import Collector

from ..agents import nothing_left
from ..disturbed import ROOT

PROGRAM = """
import sys
import numpy as np
import logclient

run = logclient.init(project="media", id="job", quiet=True)
for step in range(5):
    run.log(step, {
        "loss": float(step),
        "image": logclient.Image(np.full((8, 8, 3), step, "u1"), f"step {step}"),
        "weights": logclient.Histogram(np.arange(100.0) * step),
    })
run.log(5, {"page": logclient.Html("<script>alert(1)</script>"), "large": logclient.File(bytes(3_000_000), "l.bin")})
cells = [[n, logclient.Image(np.full((4, 4), n, "u1"), f"cell {n}")] for n in range(40)]
table = logclient.Table(cells, columns=["number", "image"])
run.log(6, {"lost": logclient.File("/none/such"), "table": table})
assert run.finish(60)
"""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    made = Collector(tmp_path / "collector", roles=("ingest", "read", "admin"))
    made.start()
    try:
        yield made
    finally:
        made.kill()


def train(where: Path, env: dict[str, str]) -> None:
    """Run the program to its end."""
    (where / "train.py").write_text(PROGRAM)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backend")])
    subprocess.run(
        [sys.executable, "train.py"], cwd=where, env={**os.environ, "PYTHONPATH": paths, **env}, check=True
    )


def check(collector: Collector) -> None:
    """All values are there, and those with bytes can be read as they were logged."""
    run = logclient.read(collector.url, token=collector.token)["job"]
    assert run.media.keys() == ["image", "large", "lost", "page", "table", "weights"]
    cells = run.media["table"][0].load().rows
    assert [cell.caption for _, cell in cells] == [f"cell {number}" for number in range(40)]
    assert all((cell.load() == number).all() for number, cell in cells)
    assert [each.load().max() for each in run.media["image"]] == [0, 1, 2, 3, 4]
    assert [each.load().edges[-1] for each in run.media["weights"][1:]] == [99.0, 198.0, 297.0, 396.0]
    assert run.media["large"][0].bytes() == bytes(3_000_000)
    assert "cannot be read" in run.media["lost"][0].lost
    assert run.keys() == ["loss"] and run.about["counts"]["stored"] == 7


def test_values_and_their_bytes_reach_a_collector_with_the_run(
    run_dir: Path, tmp_path: Path, patient: None, collector: Collector
) -> None:
    """The agent leaves once all is there; answers have safe types, for a run and a hash that belong together."""
    train(tmp_path, collector.env)
    nothing_left(60)
    check(collector)
    page = collector.get("/api/v1/run/media?run=job&key=image&first_step=1&limit=2").json()
    assert [each["step"] for each in page["media"]] == [1, 2] and page["next"] == 2
    assert page["keys"] == ["image", "large", "lost", "page", "table", "weights"]
    rest = collector.get("/api/v1/run/media?run=job&key=image&first_step=1&limit=2&after=2").json()
    assert [each["step"] for each in rest["media"]] == [3, 4] and rest["next"] == 0
    weights = collector.get("/api/v1/run/media?run=job&key=weights").json()["media"]
    assert sum(weights[1]["fields"]["counts"]) == 100

    image = page["media"][0]
    answer = collector.get(f"/api/v1/run/blob?run=job&sha256={image['sha256']}&mime=image/png")
    assert answer.content.startswith(b"\x89PNG") and answer.headers["Content-Type"] == "image/png"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "Content-Disposition" not in answer.headers
    (html,) = collector.get("/api/v1/run/media?run=job&key=page").json()["media"]
    for mime in ("text/html", "application/javascript", "image/svg+xml"):
        answer = collector.get(f"/api/v1/run/blob?run=job&sha256={html['sha256']}&mime={mime}")
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert "javascript" not in answer.headers["Content-Type"]
    for run, sha256, status in (
        ("other", image["sha256"], 404),
        ("job", "0" * 64, 404),
        ("job", "../x", 400),
    ):
        assert collector.get(f"/api/v1/run/blob?run={run}&sha256={sha256}").status_code == status
    for path in (f"/api/v1/run/blob?run=job&sha256={image['sha256']}", "/api/v1/run/media?run=job"):
        assert collector.get(path, token="").status_code == 401
        assert collector.get(path, token="wrong").status_code == 401


def test_sync_brings_what_was_logged_without_a_server(
    run_dir: Path, tmp_path: Path, patient: None, collector: Collector
) -> None:
    """Twice does no harm, and what is damaged on the disk is said."""
    train(tmp_path, {})
    nothing_left(60)
    sync = [sys.executable, "-m", "logclient_backend", "sync", str(run_dir), "--json"]
    env = {**os.environ, **collector.env}
    for _ in range(2):
        done = subprocess.run(sync, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stdout
        check(collector)


def test_blobs_go_on_where_a_killed_collector_left_them(
    run_dir: Path, tmp_path: Path, patient: None, collector: Collector
) -> None:
    """The agent sends the rest to the one that is started again."""
    collector.kill()
    train(tmp_path, {**collector.env, "LOGCLIENT_FINISH_TIMEOUT_S": "2"})
    collector.start()
    nothing_left(90)
    check(collector)


def test_a_blob_that_was_removed_is_said_to_be(
    run_dir: Path, tmp_path: Path, patient: None, collector: Collector
) -> None:
    """A reader gets a sentence, and other values are there."""
    train(tmp_path, collector.env)
    nothing_left(60)
    run = logclient.read(collector.url, token=collector.token)["job"]
    sha256 = run.media["image"][0].sha256
    for path in (tmp_path / "collector").rglob(sha256):
        path.unlink()
    with pytest.raises(LogclientError, match="did not come yet, or were removed"):
        run.media["image"][0].load()
    assert run.media["image"][1].load().max() == 1
