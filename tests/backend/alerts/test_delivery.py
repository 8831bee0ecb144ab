"""Delivery of alerts: real servers and commands that answer, hang, redirect, fail and never end."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.alerts import delivery as deliveries
from logclient_backend.alerts.delivery import Delivery, sentence
from logclient_backend.alerts.episodes import Episodes
from logclient_backend.alerts.event import BEGIN, Event, Finding, RunName
from logclient_backend.alerts.target_file import OK, REFUSED, SILENT
from tests.certificates import Authority
from tests.hooks import Hooks, hooks, look_until, target_file, webhook

RUN = RunName("r1", "mlp", "digits", "node1")
SECRET = "T0KEN-of-the-channel"


def event(kind: str = "spike", text: str = "loss rose <from> 2 & more") -> Event:
    made = Episodes(RUN).take(Finding(kind, BEGIN, text, "loss", key="loss", step=7, value=5.1), 0.0)
    assert made is not None
    return made


@pytest.fixture
def served() -> Iterator[Hooks]:
    with hooks() as made:
        yield made


def targets_of(delivery: Delivery) -> dict[str, Any]:
    found: dict[str, Any] = delivery.report()["targets"]
    return found


def test_event_comes_as_json_and_as_slack_takes_it(served: Hooks, tmp_path: Path) -> None:
    """Plain: the event. Slack: one text, with its own characters escaped. A target gets the kinds that it asks for."""
    text = webhook("plain", f"{served.url}/ok/plain") + webhook(
        "team", f"{served.url}/ok/{SECRET}", 'format = "slack"'
    )
    path = target_file(tmp_path, text + webhook("other", f"{served.url}/ok/other", 'events = ["gone"]'))
    delivery = Delivery(str(path))
    sent = event()
    delivery.offer(1, sent)
    look_until(delivery, lambda: len(served.came) == 2 and delivery.is_idle, "both come")
    (plain,) = served.of("/ok/plain")
    assert plain == json.loads(sent.to_json()) and plain["kind"] == "spike" and plain["version"] == 1
    (slack,) = served.of(f"/ok/{SECRET}")
    assert slack == {"text": "[digits/mlp] spike begins: loss rose &lt;from&gt; 2 &amp; more"}
    found = targets_of(delivery)
    assert [found[name]["delivered"] for name in ("plain", "team", "other")] == [1, 1, 0]
    assert SECRET not in json.dumps(delivery.report()) + repr(delivery.file.targets)


@pytest.mark.parametrize(
    ("path", "words", "is_tried_again"),
    [
        ("/redirect", "redirect (status 307)", False),
        ("/404", "status 404", False),
        ("/500", "status 500", True),
        ("/429", "status 429", True),
        ("/hang", "no answer within 5 s", True),
        ("/drip", "had not ended by its deadline", True),
    ],
)
def test_what_fails_is_reported_by_name(
    path: str, words: str, is_tried_again: bool, served: Hooks, tmp_path: Path
) -> None:
    """A redirect is not followed; what may get better is tried again; the URL is in no report."""
    delivery = Delivery(str(target_file(tmp_path, webhook("team", f"{served.url}{path}/{SECRET}"))))
    delivery.offer(1, event())
    look_until(delivery, lambda: targets_of(delivery).get("team", {}).get("failed"), "it fails")
    report = targets_of(delivery)["team"]
    assert words in report["trouble"] and report["delivered"] == 0
    assert (report["waiting"], report["dropped"]) == ((1, 0) if is_tried_again else (0, 1))
    assert served.of("/ok") == [] and SECRET not in json.dumps(delivery.report())
    delivery.close()


def test_endless_answer_is_not_read(served: Hooks, tmp_path: Path) -> None:
    """Its head says that the event was taken."""
    delivery = Delivery(str(target_file(tmp_path, webhook("team", f"{served.url}/endless"))))
    delivery.offer(1, event())
    look_until(delivery, lambda: targets_of(delivery).get("team", {}).get("delivered"), "it is taken")


def test_nobody_listens_and_no_certificate_is_trusted(tmp_path: Path) -> None:
    """Both are tried again, and named apart."""
    with hooks() as gone:
        url = gone.url
    authority = Authority(tmp_path / "ca")
    with hooks(authority.certificate("good")) as served:
        text = webhook("gone", url) + webhook("untrusted", f"{served.url}/ok")
        delivery = Delivery(str(target_file(tmp_path, text)))
        delivery.offer(1, event())
        look_until(
            delivery,
            lambda: all(q["failed"] for q in targets_of(delivery).values() or [{"failed": 0}]),
            "both fail",
        )
        found = targets_of(delivery)
        assert "is not reached" in found["gone"]["trouble"] and "TLS fails" in found["untrusted"]["trouble"]
        assert served.came == [] and found["gone"]["waiting"] == found["untrusted"]["waiting"] == 1


@pytest.mark.parametrize(("kind", "is_taken"), [("good", True), ("expired", False), ("elsewhere", False)])
def test_certificates_of_the_file_are_the_ones_that_count(kind: str, is_taken: bool, tmp_path: Path) -> None:
    """`ca` names who signs; dates and names are checked all the same."""
    authority = Authority(tmp_path / "ca")
    with hooks(authority.certificate(kind)) as served:
        text = f'ca = "{authority.folder / "ca.pem"}"\n' + webhook("team", f"{served.url}/ok")
        delivery = Delivery(str(target_file(tmp_path, text)))
        delivery.offer(1, event())
        name = "delivered" if is_taken else "failed"
        look_until(delivery, lambda: targets_of(delivery).get("team", {}).get(name), name)
        assert len(served.came) == is_taken


def test_hanging_target_delays_no_other(served: Hooks, tmp_path: Path) -> None:
    """Ten events get through while the first target has not answered one."""
    text = webhook("slow", f"{served.url}/hang") + webhook("team", f"{served.url}/ok")
    delivery = Delivery(str(target_file(tmp_path, text)))
    for number in range(1, 11):
        delivery.offer(number, event())
    look_until(delivery, lambda: len(served.of("/ok")) == 10, "all come to the other one")
    assert targets_of(delivery)["slow"]["delivered"] == 0
    delivery.close()


def test_failed_event_comes_again_and_in_order(
    served: Hooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two answers of 503 the first is taken, then the second."""
    monkeypatch.setattr(deliveries, "FIRST_RETRY_S", 0.05)
    served.answers["/ok"] = [503, 503]
    delivery = Delivery(str(target_file(tmp_path, webhook("team", f"{served.url}/ok"))))
    delivery.offer(1, event(text="first"))
    delivery.offer(2, event(text="second"))
    look_until(delivery, lambda: delivery.is_idle and len(served.came) == 4, "both are taken")
    assert [content["text"] for content in served.of("/ok")] == ["first", "first", "first", "second"]
    report = targets_of(delivery)["team"]
    assert (report["delivered"], report["failed"], report["dropped"], report["waiting"]) == (2, 2, 0, 0)


def test_queue_is_bounded_and_old_events_are_given_up(served: Hooks, tmp_path: Path) -> None:
    """The oldest go first, counted; what is an hour old is sent to nobody."""
    now = [1000.0]
    delivery = Delivery(
        str(target_file(tmp_path, webhook("team", f"{served.url}/500"))), clock=lambda: now[0]
    )
    look_until(delivery, lambda: targets_of(delivery), "the file is read")
    for number in range(1, deliveries.MAX_QUEUE + 51):
        delivery.offer(number, event())
    report = targets_of(delivery)["team"]
    assert (report["waiting"], report["dropped"]) == (deliveries.MAX_QUEUE, 50)
    now[0] += deliveries.MAX_AGE_S + 1
    delivery.offer(1000, event(text="young"))
    served.answers["/500"] = [200]
    look_until(delivery, lambda: targets_of(delivery)["team"]["delivered"] == 1, "the young one is sent")
    assert [content["text"] for _, content in served.came] == ["young"]
    assert targets_of(delivery)["team"]["dropped"] == 50 + deliveries.MAX_QUEUE


# ---- commands -------------------------------------------------------------------------------------------------


def command(argv: list[str], more: str = "") -> str:
    return f'commands = true\n[[targets]]\nname = "do"\ncommand = {json.dumps(argv)}\nevents = ["spike"]\n{more}\n'


def ran(tmp_path: Path, source: str, more: str = "", *, key: str = "delivered") -> dict[str, Any]:
    script = tmp_path / "script.py"
    script.write_text(source)
    argv = [sys.executable, "-S", str(script), str(tmp_path)]
    delivery = Delivery(str(target_file(tmp_path, command(argv, more))))
    delivery.offer(1, event())
    look_until(delivery, lambda: targets_of(delivery).get("do", {}).get(key), key)
    report: dict[str, Any] = targets_of(delivery)["do"]
    return report


def test_command_gets_the_event_and_no_shell(tmp_path: Path) -> None:
    """JSON on standard input, arguments as they are, no descriptor of ours, a process group of its own."""
    source = """
import json, os, sys
files = sorted(map(int, os.listdir("/proc/self/fd")))
with open(sys.argv[1] + "/got", "w") as file:
    found = {"event": json.load(sys.stdin), "files": files, "cwd": os.getcwd()}
    json.dump({**found, "group": os.getpgid(0) == os.getpid()}, file)
"""
    assert ran(tmp_path, source)["trouble"] == ""
    got = json.loads((tmp_path / "got").read_text())
    assert got["event"]["kind"] == "spike" and got["event"]["run"] == "r1"
    assert got["group"] and got["cwd"] == "/" and set(got["files"]) <= {0, 1, 2, 3}  # 3: that of listdir


@pytest.mark.parametrize(
    ("source", "words"),
    [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 15)", "signal 15")],
)
def test_command_that_fails_is_not_run_again(source: str, words: str, tmp_path: Path) -> None:
    """It may have done half of its work."""
    report = ran(tmp_path, source, key="failed")
    assert words in report["trouble"] and (report["waiting"], report["dropped"]) == (0, 1)


def test_program_that_is_not_there(tmp_path: Path) -> None:
    delivery = Delivery(str(target_file(tmp_path, command(["/nowhere/program"]))))
    delivery.offer(1, event())
    look_until(delivery, lambda: targets_of(delivery).get("do", {}).get("failed"), "it fails")
    assert "cannot be executed" in targets_of(delivery)["do"]["trouble"]


FAMILY = """
import os, sys, time
for name in ("first", "second"):
    if os.fork() == 0:
        open(sys.argv[1] + "/" + name, "w").write(str(os.getpid()))
        time.sleep(600)
for name in ("first", "second"):
    while not os.path.exists(sys.argv[1] + "/" + name) or not os.path.getsize(sys.argv[1] + "/" + name):
        time.sleep(0.01)
{end}
"""


@pytest.mark.parametrize("end", ["time.sleep(600)", ""], ids=["hangs", "ends"])
def test_process_group_ends_with_the_command(end: str, tmp_path: Path) -> None:
    """At the deadline, or when the command has ended: its children live no longer."""
    key = "failed" if end else "delivered"
    report = ran(tmp_path, FAMILY.format(end=end), "timeout_s = 3" if end else "", key=key)
    assert ("deadline" in report["trouble"]) == bool(end)
    deadline = time.monotonic() + 60
    for name in ("first", "second"):
        pid = int((tmp_path / name).read_text())
        while lives(pid, tmp_path):
            assert time.monotonic() < deadline, f"{name} lives"
            time.sleep(0.01)


def lives(pid: int, tmp_path: Path) -> bool:
    """Has a process with this PID the script's command line? That of a zombie is empty."""
    try:
        return str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# ---- the file -------------------------------------------------------------------------------------------------


def read_once(path: Path) -> Delivery:
    delivery = Delivery(str(path))
    look_until(delivery, lambda: delivery.file.state, "it is read")
    return delivery


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_that_others_may_write_is_refused(mode: int, served: Hooks, tmp_path: Path) -> None:
    """Whoever may write it could run commands as us."""
    path = target_file(tmp_path, webhook("team", f"{served.url}/ok"))
    path.chmod(mode)
    delivery = read_once(path)
    assert delivery.file.state == REFUSED and "chmod go-w" in delivery.file.trouble
    delivery.offer(1, event())
    delivery.look()
    assert targets_of(delivery) == {} and served.came == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_refused(served: Hooks, tmp_path: Path) -> None:
    path = target_file(tmp_path, webhook("team", f"{served.url}/ok"))
    os.chown(path, 65534, 65534)
    assert "belongs to another user" in read_once(path).file.trouble


def test_odd_files_are_refused_and_nothing_waits(tmp_path: Path) -> None:
    """A folder, a FIFO that nobody writes to, one that is too large, one that is no TOML."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    large = tmp_path / "large"
    large.write_bytes(b"#" * 100_000)
    for path, words in ((tmp_path, "is no file"), (fifo, "is no file"), (large, "larger than")):
        delivery = read_once(path)
        assert delivery.file.state == REFUSED and words in delivery.file.trouble, path
    assert stat.S_ISFIFO(os.lstat(fifo).st_mode)
    text = f'[[targets]]\nname = "team"\nurl = "https://x/{SECRET}\n'
    delivery = read_once(target_file(tmp_path, text))
    assert "no TOML file (line 3)" in delivery.file.trouble and SECRET not in delivery.file.trouble


def test_missing_file_is_no_trouble(tmp_path: Path) -> None:
    """Nothing is configured: nothing is sent, and nothing is wrong."""
    delivery = Delivery(str(tmp_path / "none.toml"))
    look_until(delivery, lambda: delivery.file.state, "it is looked for")
    assert (delivery.file.state, delivery.file.trouble) == ("missing", "") and delivery.is_idle
    assert Delivery(None).file.state == "missing"
    assert "absolute path" in Delivery("relative.toml").file.trouble


def test_file_is_read_again_before_something_is_sent(served: Hooks, tmp_path: Path) -> None:
    """A URL that was changed gets the next event; while the file is refused, events wait."""
    now = [1000.0]
    path = target_file(tmp_path, webhook("team", f"{served.url}/ok/old"))
    delivery = Delivery(str(path), clock=lambda: now[0])
    delivery.offer(1, event())
    look_until(delivery, lambda: served.of("/ok/old") and delivery.is_idle, "the first comes")
    target_file(tmp_path, webhook("team", f"{served.url}/ok/new"))
    path.chmod(0o666)
    now[0] += 10
    delivery.offer(2, event())
    look_until(delivery, lambda: delivery.file.state == REFUSED, "it is refused")
    delivery.look()
    path.chmod(0o600)
    now[0] += 10
    look_until(delivery, lambda: served.of("/ok/new"), "the second comes")
    assert len(served.came) == 2


def test_sentences_have_no_url() -> None:
    """Made of codes alone."""
    for code in deliveries.WORDS:
        assert sentence({"code": code, "status": 500})
    assert sentence({"code": "delivered"}) == "" and OK != SILENT
