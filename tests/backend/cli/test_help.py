"""Every verb explains itself, and costs little before it does anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from logclient_backend.cli import EXIT_CODES, VERBS, cli

HEAVY = ("rich", "psutil", "pyarrow", "numpy", "torch")


def all_commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        yield verb, command
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield f"{verb} {name}", inner


COMMANDS = dict(all_commands())
DRAW = {"top", "ui"}  # they print no answer


def test_verbs_are_there() -> None:
    """What the issue names."""
    expected = {"ls", "show", "tail", "export", "import", "status", "recover", "doctor", "wal"}
    assert expected | {"wal verify", "wal dump", "wal repair"} <= set(COMMANDS)
    assert set(VERBS) >= {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_what_options_do_and_has_an_example(name: str) -> None:
    """A sentence, an example, every option with its meaning, and the exit codes."""
    command = COMMANDS[name]
    assert command.help and command.help.strip()[0].isupper()
    assert f"logclient {name}" in command.help, "no example"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith(".") or "default" in parameter.help, parameter.help
    if not isinstance(command, click.Group):
        assert command.epilog and "Exit codes: 0" in command.epilog


@pytest.mark.parametrize(
    "name",
    [name for name, command in COMMANDS.items() if not isinstance(command, click.Group) and name not in DRAW],
)
def test_every_verb_speaks_json(name: str) -> None:
    """For programs; but for verbs that draw."""
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options


def test_overview_says_what_the_verb_says() -> None:
    """The overview, which imports no verb, begins as the verb's own help does."""
    for verb, (_, short) in VERBS.items():
        if verb in COMMANDS:
            assert (COMMANDS[verb].help or "").split()[:1] == short.split()[:1], verb


def test_overview_lists_verbs_and_exit_codes(logclient: object) -> None:
    """`logclient --help` is where one looks first."""
    text = logclient("--help").stdout  # type: ignore[operator]
    for verb in ("ls", "show", "recover", "doctor"):
        assert f"  {verb} " in text
    for code in EXIT_CODES:
        assert f"  {code} " in text
    assert logclient("--version").stdout.startswith("logclient ")  # type: ignore[operator]


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    "arguments", [["--help"], ["ls", "--help"], ["show", "--help"], ["doctor", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Neither rich nor psutil before something is printed with them."""
    code = (
        "import sys\nfrom logclient_backend.cli import cli\n"
        f"try:\n    cli({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stderr.strip() == "[]", done.stderr


def test_unknown_verb_is_usage_with_a_hint(logclient: object) -> None:
    """And what was probably meant."""
    result = logclient("shwo", code=2)  # type: ignore[operator]
    assert "did you mean show?" in result.stderr
    assert "there are: ls, show" in logclient("frobnicate", code=2).stderr  # type: ignore[operator]
    assert "No such option" in logclient("ls", "--frob", code=2).stderr  # type: ignore[operator]
