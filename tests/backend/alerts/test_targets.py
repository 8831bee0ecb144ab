"""The file of targets: whatever is in it, it is taken whole or refused by a sentence that shows nothing secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import BadArgument
from logclient_backend.alerts.targets import Targets, is_open, parse

SECRET = "T0KEN"
WHERE = "/home/me/alerts.toml"


def parsed(text: str) -> Targets:
    return parse(text.encode(), WHERE)


def test_whole_file() -> None:
    found = parsed(f"""
        ca = "team.pem"
        commands = true
        rules = ["loss > 10", {{when = "spike", key = "train/*"}}]
        [[targets]]
        name = "team"
        url = "https://hooks.example/{SECRET}"
        format = "slack"
        events = ["stalled", "gone"]
        [[targets]]
        name = "requeue"
        command = ["/usr/bin/scontrol", "requeue", "12"]
        events = ["stalled"]
        timeout_s = 5
    """)
    team, requeue = found.targets
    assert found.ca_path == "/home/me/team.pem" and [rule["when"] for rule in found.rules] == [
        "over",
        "spike",
    ]
    assert team.is_slack and team.wants("gone") and team.wants("test") and not team.wants("spike")
    assert requeue.command == ("/usr/bin/scontrol", "requeue", "12") and requeue.timeout_s == 5.0
    assert SECRET not in repr(found) and "scontrol" not in repr(found)


HOOK = f'[[targets]]\nname = "t"\nurl = "https://h/{SECRET}"\n'
COMMAND = '[[targets]]\nname = "t"\ncommand = ["/bin/true"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'url = "https://{SECRET}\n', "is no TOML file (line 1)"),
        (f'{SECRET} = ="x"', "is no TOML file (line 1)"),
        ("[[target]]", "no setting 'target'; there are ca, commands, rules, targets"),
        ("targets = 3", "'targets' is a list"),
        ("targets = [3]", "target 1 is no table"),
        ('rules = ["loss >"]', "rule 1 ('loss >'): expected KEY > NUMBER"),
        ('[[targets]]\nurl = "https://h/x"', "'name' is 1 to 40 letters"),
        (HOOK + HOOK, "two targets have the name 't'"),
        (HOOK + 'command = ["/bin/true"]', "needs a 'url' or a 'command', and not both"),
        ('[[targets]]\nname = "t"', "needs a 'url' or a 'command', and not both"),
        (HOOK + 'format = "xml"', "'format' is json or slack"),
        (HOOK + 'events = ["stalled", "odd"]', "no kind 'odd'"),
        (HOOK + "timeout_s = 3", "no setting 'timeout_s'"),
        (HOOK.replace("https", "ftp"), "'url' is https://HOST/PATH"),
        (HOOK.replace("https://h/", "https:///"), "'url' is https://HOST/PATH"),
        (HOOK.replace("https://h", "https://h:99999"), "'url' is https://HOST/PATH"),
        (HOOK.replace("https://h/", "https://h/ "), "'url' is https://HOST/PATH"),
        (COMMAND, "a command needs 'events'"),
        (COMMAND + 'events = ["stalled"]', "these are off: write commands = true"),
        ("commands = true\n" + COMMAND.replace("/bin/true", "true"), "the absolute path of a program"),
        ("commands = true\n" + COMMAND.replace('["/bin/true"]', '"/bin/true"'), "'command' is a list"),
        ("commands = true\n" + COMMAND + 'events = ["stalled"]\ntimeout_s = 0', "'timeout_s' is a number"),
        ("commands = 1", "'commands' is true or false"),
        ("\n".join(HOOK.replace('"t"', f'"t{n}"') for n in range(17)), "17 targets, and at most 16"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_secret_is_shown(text: str, words: str) -> None:
    with pytest.raises(BadArgument) as caught:
        parsed(text)
    assert words in str(caught.value) and str(caught.value).startswith(WHERE)
    assert SECRET not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_file_or_a_bad_argument(data: bytes) -> None:
    try:
        parse(data, WHERE)
    except BadArgument as error:
        assert str(error).startswith(WHERE)


ODD = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8) | st.floats()
VALUES = ODD.filter(lambda value: value is not None) | st.lists(st.text(max_size=5), max_size=2)
FIELDS = st.sampled_from(["name", "url", "format", "command", "events", "timeout_s", "x"])
GOOD = st.fixed_dictionaries({"name": st.just("t"), "url": st.just(f"https://h/{SECRET}")})


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


@given(
    st.lists(
        GOOD.flatmap(lambda good: st.dictionaries(FIELDS, VALUES, max_size=3).map(lambda d: {**good, **d})),
        max_size=3,
    )
)
def test_odd_tables_are_taken_whole_or_named(targets: list[dict[str, Any]]) -> None:
    """And never shown."""
    try:
        found = parsed(f"commands = true\ntargets = {toml(targets)}\n")
    except BadArgument as error:
        assert SECRET not in str(error)
        return
    assert len(found.targets) == len(targets)
    assert all(bool(target.url) != bool(target.command) for target in found.targets)


def test_what_others_can_read_on_the_way() -> None:
    assert is_open("http://hooks.example/x")
    assert not is_open("https://hooks.example/x") and not is_open("http://localhost:9/x")
