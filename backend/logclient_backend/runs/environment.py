"""Environments of a run's program, node by node, from their documents. Pure; nothing in these is believed.

The content is that of `observe/environment/collect.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .node import Node, listed, table, text, whole


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment of the process that owned the run on one node last."""

    node: str
    host: str
    process: str
    captured_ns: int
    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"node": self.node, "host": self.host, "captured_ns": self.captured_ns, **self.content}

    def brief(self) -> dict[str, Any]:
        """The part that a page about the run shows at once: without packages, variables and the diff."""
        command, code = table(self.content.get("command")), table(self.content.get("code"))
        return {
            "node": self.node,
            "host": self.host,
            "captured_ns": self.captured_ns,
            "command": {name: value for name, value in command.items() if name != "variables"},
            "code": {name: value for name, value in code.items() if name != "diff"},
            "machine": table(self.content.get("machine")),
            "gpus": listed(self.content.get("gpus")),
            "packages": len(listed(self.content.get("packages"))),
            "missing": table(self.content.get("missing")),
        }


def environments_of(nodes: list[Node]) -> list[Environment]:
    """Return those of a run's nodes, the newest last."""
    found = []
    for node in nodes:
        content = table(node.environment.get("environment"))
        if content:
            captured_ns = whole(node.environment.get("captured_ns"))
            found.append(
                Environment(node.id, node.host, text(node.environment.get("process")), captured_ns, content)
            )
    return sorted(found, key=lambda each: (each.captured_ns, each.node))


def commit(environments: list[Environment]) -> str:
    """Return commit and branch of the newest environment; empty where they are not known."""
    code = table(environments[-1].content.get("code")) if environments else {}
    if not text(code.get("commit")):
        return ""
    branch = f" on {text(code['branch'])}" if text(code.get("branch")) else ""
    return f"{text(code['commit'])}{branch}{', with changes' if code.get('dirty') is True else ''}"
