"""The command `logclient`: one file per verb, loaded when it is called.

`main` is the entry point; `cli` the same for tests. What a verb raises becomes a sentence on standard error and one
of the exit codes below, the same for all verbs.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from typing import Any

import click

from logclient.config import silence_grpc
from logclient.errors import BadArgument, LogclientError, NoRun, Unsupported
from logclient.shm.proc import umask

from .text import safe_lines

OK, NO, USAGE, MISSING, PARTIAL, INTERRUPTED, CLOSED = 0, 1, 2, 3, 4, 130, 141

EXIT_CODES = {
    OK: "done; the answer is yes",
    NO: "the answer is no (damage found, something needs doing, nothing stored), or it failed",
    USAGE: "called wrongly",
    MISSING: "no such run, folder or file, or more than one run is meant",
    PARTIAL: "part of it was done; what was not is named",
    INTERRUPTED: "interrupted (Ctrl-C)",
    CLOSED: "whoever read the output closed it",
}

# verb: (module, what it does in a line); `logclient --help` imports none of them
VERBS = {
    "ls": ("ls", "List the runs of a folder or of a server."),
    "show": ("show", "Show one run: state, config, last values, gaps, curves."),
    "tail": ("tail", "Print the last records of a run, and follow it."),
    "ui": ("ui", "Open the dashboard over the runs of a folder."),
    "top": ("top", "Show runs, live curves and ranks in the terminal."),
    "export": ("export", "Take the points of a run out, as csv, jsonl or parquet."),
    "import": ("import_", "Take in a run that was exported."),
    "edit": ("edit", "Edit the name, group, notes or tags of a run."),
    "why": ("why", "Say who is stuck, where, and why."),
    "stop": ("stop", "Ask a run to stop, or to save a checkpoint."),
    "preflight": ("preflight", "Check ranks, devices, network and folders before a job trains."),
    "status": ("status", "Show what runs on this host now."),
    "alerts": ("alerts", "Look after alerts: try out where they go."),
    "recover": ("recover", "Store what dead processes left in shared memory."),
    "doctor": ("doctor", "Check this machine, and print what to do."),
    "wal": ("wal", "Verify, dump or repair the files of a run."),
    "sync": ("sync", "Send runs to a collector that has them not yet."),
    "server": ("server", "Be a collector, or look after one."),
    "demo": ("demo", "Train a small model while faults are injected."),
}


class Problem(click.ClickException):
    """A sentence for standard error, and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code: int = code  # type: ignore[misc]  # click has it on the class

    def show(self, file: Any = None) -> None:
        click.echo(f"logclient: {safe_lines(self.message)}", file=file, err=file is None)


class Verbs(click.Group):
    """A group whose verbs are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [
            verb for verb, (module, _) in VERBS.items() if importlib.util.find_spec(f"{__name__}.{module}")
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{VERBS[cmd_name][0]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verbs = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in verbs:
            near = difflib.get_close_matches(args[0], verbs, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(verbs)}."
            raise click.UsageError(f"There is no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, VERBS[verb][1]) for verb in self.list_commands(ctx)])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoRun as error:
            raise Problem(str(error), MISSING) from error
        except BadArgument as error:
            raise Problem(str(error), USAGE) from error
        except Unsupported as error:
            raise Problem(str(error), PARTIAL) from error
        except LogclientError as error:
            raise Problem(str(error), NO) from error
        except BrokenPipeError:
            _close_output()
            raise click.exceptions.Exit(CLOSED) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            code = MISSING if isinstance(error, FileNotFoundError) else NO
            raise Problem(f"{where}{error.strerror or error}", code) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


def _close_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains at its end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"logclient {version('logclient')}")
        ctx.exit()


@click.group(
    cls=Verbs, subcommand_metavar="VERB [ARGS]...", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Show the version."
)
def cli() -> None:
    """Look at runs that were logged with logclient, and look after them.

    RUN is an id, a unique part of one, or a name (the newest run with it). Runs are looked for in --dir,
    else in LOGCLIENT_DIR, else in ./logclient-runs.

    \b
    logclient ls                       which runs there are
    logclient show mlp                 the newest run called mlp
    logclient export mlp --out mlp/    its points and all that belongs to them
    """


def main() -> None:
    """The entry point of the command."""
    silence_grpc()
    os.umask(umask() & 0o077)  # what we make we must be able to use
    cli(prog_name="logclient")


if __name__ == "__main__":
    main()
