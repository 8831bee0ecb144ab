"""`logclient preflight`: check ranks, devices, network and folders of a job before it trains."""

from __future__ import annotations

import os
from typing import Any

import click

from .. import preflight
from . import screen
from .options import with_json
from .text import safe, size

_MAX_ROWS = 64


@click.command(
    "preflight", epilog="Exit codes: 0 all is well, 1 something failed or lags, or there is no verdict."
)
@click.option("--folder", "folders", multiple=True, metavar="PATH", type=click.Path(),
              help="A run or checkpoint folder to try; may be repeated. Default: the working directory.")  # fmt: skip
@click.option("--backend", type=click.Choice(["auto", "gloo", "nccl"]), default="auto", show_default=True,
              help="Collectives to try; auto: gloo, and NCCL where each rank has a device.")  # fmt: skip
@click.option("--timeout", "timeout_s", type=click.FloatRange(1, 600), default=8.0, show_default=True,
              metavar="SECONDS", help="Deadline of each check.")  # fmt: skip
@click.option("--join-timeout", "join_s", type=click.FloatRange(1, 3600), default=25.0, show_default=True,
              metavar="SECONDS", help="Wait for a rank that has not come, since the last one that has.")  # fmt: skip
@click.option("--port", "base_port", type=click.IntRange(1024, 65_000), metavar="PORT",
              help="Port at which rank 0 is found; rank r exchanges at PORT + 1 + r. Default: behind MASTER_PORT, and "
                   "any that is free.")  # fmt: skip
@with_json
def command(
    folders: tuple[str, ...],
    backend: str,
    timeout_s: float,
    join_s: float,
    base_port: int | None,
    as_json: bool,
) -> None:
    """Check a job's ranks, devices, network and folders before it trains, and name what failed or lags.

    Start it as the training is started, with the same launcher, hosts and variables. Each check has a deadline, and
    nothing that hangs makes it wait. Rank 0 prints the report.

    \b
    torchrun --nproc-per-node 8 -m logclient_backend preflight --folder /data/checkpoints
    srun python -m logclient_backend preflight --folder runs
    """
    place = preflight.find_place(base_port)
    paths = tuple(os.path.abspath(path) for path in folders or (".",))
    plan = preflight.Plan(paths, backend, timeout_s, join_s)
    code = preflight.run(place, plan, screen.print_json if as_json else _show)
    raise click.exceptions.Exit(code)


def _show(report: dict[str, Any]) -> None:
    screen.show(*_page(report))


def _page(report: dict[str, Any]) -> list[Any]:
    hosts = len(report["hosts"])
    job = f"{report['ranks']} rank{'s' * (report['ranks'] != 1)} on {hosts} host{'s' * (hosts != 1)}"
    if report["ok"]:
        lines = [screen.line(("preflight: all is well", "bold green"), f": {job}, {report['took_s']:.1f} s")]
    else:
        count = len(report["findings"])
        what = f"{count} finding{'s' * (count != 1)}"
        lines = [screen.line((f"preflight: {what}", "bold red"), f": {job}, {report['took_s']:.1f} s")]
    for finding in report["findings"]:
        lines.append(screen.line((f"  {finding['code']}: ", "yellow"), safe(finding["text"])))
    for what, why in report["not_tried"].items():
        lines.append(screen.line((f"  not tried: {what}: {safe(why)}", "dim")))
    lines.append(_ranks(report))
    lines += _settings(report)
    return lines


def _ranks(report: dict[str, Any]) -> Any:
    """One row per rank; of very many, those with a finding and the first."""
    odd = {rank for finding in report["findings"] for rank in finding["ranks"]}
    members = sorted(report["members"], key=lambda member: (member["rank"] not in odd, member["rank"]))
    shown = sorted(members[:_MAX_ROWS], key=lambda member: int(member["rank"]))
    table = screen.table(
        "RANK", "HOST", "PID", "INTERFACE", "ADDRESS", "PAIRS", "COLLECTIVES", "DEVICE", "MATMUL", "FREE",
        "CLOCK", "FOLDERS", right=(0, 2, 5, 8, 9, 10),
    )  # fmt: skip
    for member in shown:
        device = (member["devices"] or [{}])[0]
        more = f" +{len(member['devices']) - 1}" if len(member["devices"]) > 1 else ""
        table.add_row(
            f"{member['rank']}{'!' * (member['rank'] in odd)}",
            safe(member["host"]),
            "gone" if member["gone"] else str(member["pid"]),
            safe(member["interface"] or "-"),
            safe(member["address"] or "-"),
            _ms(member["pairs_s"]),
            ", ".join(_collective(*each) for each in member["collectives"].items()) or "-",
            safe(device.get("id", "-")) + more,
            _flops(device["rate"]) if "rate" in device else "-",
            size(device["free_bytes"]) if "free_bytes" in device else "-",
            f"{device['clock_mhz']:,.0f} MHz" if device.get("clock_mhz") else "-",
            ", ".join(_folder(*each) for each in member["folders"].items()) or "-",
        )
    return table


def _flops(rate: float) -> str:
    return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.1f} GFLOP/s"


def _collective(backend: str, facts: dict[str, Any]) -> str:
    took = facts.get("all_reduce_s")
    return f"{backend} {_ms(took)}" if took is not None else f"{backend} {facts['stage']}"


def _folder(path: str, facts: dict[str, Any]) -> str:
    name = safe(os.path.basename(path) or path)
    if facts["error"]:
        return f"{name} failed"
    took = facts.get("seconds")
    return f"{name} {_ms(sum(took.values()))}" if took else f"{name} {facts['stage']}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"


def _settings(report: dict[str, Any]) -> list[Any]:
    lines = [screen.line(("settings in force", "dim"))]
    for each in report["settings"]:
        for value in each["values"]:
            ranks = (
                f"  on {preflight.names(value['ranks'])}"
                if each["differs"] or len(each["values"]) > 1
                else ""
            )
            mark = ("! ", "yellow") if each["differs"] else ("  ", "")
            lines.append(screen.line(mark, f"{safe(each['name'])}={safe(value['value'])}{ranks}"))
    if not report["settings"]:
        lines.append(screen.line(("  none of NCCL_*, GLOO_* and the like", "dim")))
    return lines
