"""State of the run as this node knows it, from the documents that the worker keeps on tmpfs."""

from __future__ import annotations

from typing import Any

from logclient.errors import Unsupported
from logclient.shm.regular import read_object

from ...runs import node as nodes
from ...runs.folder import Found
from ...runs.node import Node
from ...runs.state import State
from ...runs.view import view
from ..host.shm_dir_handle import ShmDirHandle

LEDGER = "ledger.json"


def ledger_of(handle: ShmDirHandle) -> dict[str, Any]:
    """Return the newest documents of this node; empty where there are none."""
    return read_object(handle.file(LEDGER)) or {}


def state_of(ledger: dict[str, Any]) -> State | None:
    """Return the state of the run; None where the node cannot tell: its owner is on another one."""
    node = Node("", "")
    try:
        nodes.take(node, ledger)
    except (Unsupported, ValueError):
        return None
    if not any(process.is_owner and process.rank in (None, 0) for process in node.processes.values()):
        return None
    node.now_ns = node.heard_ns
    return view(Found("", "", [node]), node.heard_ns).state
