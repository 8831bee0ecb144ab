"""Draw the imports of client and agent as numbers: rooms, edges, floors, cycles, and accesses to what is private.

    python tools/rooms.py [--edges]

A room is a module or a package right below the folder that is drawn. An edge is an import from one room to another,
those inside functions included, those for type checkers alone excluded. Floors: the longest way down, where rooms
of one cycle share a floor. A private access is `other._name` where this module defines no `_name`.

Fails where a number is above its limit. Limits may only fall.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
Graph = dict[str, set[str]]


class Limits(NamedTuple):
    """The most that a folder may have of each."""

    rooms: int
    edges: int
    cycles: int  # of modules, at run time
    private: int  # accesses from one module to another one's underscore


# Underscores of the standard library that are meant to be used, see its documentation.
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"}
# Underscores of other packages, where these have no public name for it: each is guarded by a test with that package.
FOREIGN = {
    "torch": """_C _cuda_getCurrentStream _cuda_isCurrentStreamCapturing _DisableTorchDispatch _execution_engine
        _foreach_abs _foreach_clamp_min_ _foreach_div _foreach_norm _foreach_sign_ _foreach_sub _FrameAction
        _FrameExecStrategy _functorch _len_torch_dispatch_stack _len_torch_function_stack _local_tensor
        _torchdynamo_disable _torchdynamo_disable_msg""",
    "torch_xla": "_closure_queue",
    "lightning": "_last_global_step_saved",
    "multiprocess": "_children",
}
ALLOWED = DOCUMENTED | {name for names in FOREIGN.values() for name in names.split()}
# Cycles of the client are the two doorways of unpickling: a run, and a run of the W&B layer, come back as they began.
FOLDERS = {
    "logclient": Limits(rooms=20, edges=90, cycles=2, private=0),
    "backend/logclient_backend/agent": Limits(rooms=10, edges=30, cycles=0, private=0),
}


def modules_of(folder: Path) -> dict[str, Path]:
    """Dotted names below the folder, the folder itself as an empty one."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


def imports_of(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Statements that a run of the module, or of a function in it, may execute."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from imports_of(ast.Module(node.orelse, []))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from imports_of(node)


def targets(name: str, path: Path, package: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules of the folder that this one imports."""
    for node in imports_of(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                above = [package, *name.split(".")] if name else [package]
                is_package = path.name == "__init__.py"
                above = above[: len(above) - node.level + is_package]
                base = ".".join([*above, *([node.module] if node.module else [])])
            named = [f"{base}.{alias.name}" for alias in node.names] + [base]
        for word in named:
            inside = word.removeprefix(package).removeprefix(".")
            if f"{word}.".startswith(f"{package}.") and inside in modules and inside != name:
                yield inside


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reach = {node: reachable(graph, node) for node in graph}
    groups = {frozenset(other for other in reach[node] if node in reach[other]) | {node} for node in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for node in graph.get(waiting.pop(), ()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def floors(graph: Graph) -> int:
    """Nodes on the longest way down; those of one cycle count as one."""
    group_of = {node: node for node in graph}
    for group in cycles(graph):
        group_of.update(dict.fromkeys(group, group[0]))
    folded: Graph = {}
    for node, below in graph.items():
        folded.setdefault(group_of[node], set()).update(group_of[other] for other in below)
    depth: dict[str, int] = {}

    def deep(node: str) -> int:
        if node not in depth:
            depth[node] = 1 + max((deep(other) for other in folded[node] if other != node), default=0)
        return depth[node]

    return max(map(deep, folded), default=0)


def private_accesses(path: Path) -> Iterator[str]:
    """`file:line name` of each access to an underscore that another module owns."""
    tree = ast.parse(path.read_text())
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    own |= {
        word
        for node in ast.walk(tree)
        for word in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else [node.value]
            if isinstance(node, ast.Constant) and isinstance(node.value, str)  # __slots__
            else [node.id]
            if isinstance(node, ast.Name)
            else []
        )
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr in own | ALLOWED:
            continue
        if node.attr.startswith("_") and not node.attr.endswith("__"):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"


class Drawing(NamedTuple):
    """The imports of one folder."""

    edges: Graph  # between rooms
    module_cycles: list[list[str]]
    private: list[str]

    @property
    def counts(self) -> Limits:
        """The numbers that the limits are for."""
        edges = sum(map(len, self.edges.values()))
        return Limits(len(self.edges), edges, len(self.module_cycles), len(self.private))


def draw(folder: Path) -> Drawing:
    """Read all modules of the folder."""
    modules = modules_of(folder)
    graph: Graph = {name: set() for name in modules}
    for name, path in modules.items():
        graph[name].update(targets(name, path, folder.name, modules))
        graph[name].discard("")  # a package's own front: its modules are what is imported
    rooms: Graph = {name.partition(".")[0]: set() for name in modules}
    for name, below in graph.items():
        rooms[name.partition(".")[0]].update(other.partition(".")[0] for other in below)
    for room, below in rooms.items():
        below.discard(room)
    private = [access for path in modules.values() for access in private_accesses(path)]
    return Drawing(rooms, cycles(graph), private)


def faults(folder: str, drawn: Drawing, limits: Limits) -> Iterator[str]:
    """A sentence for each number above its limit."""
    for what, count, most in zip(limits._fields, drawn.counts, limits, strict=True):
        if count > most:
            yield f"{folder}: {count} {what}, at most {most}."


def main(words: Iterable[str]) -> int:
    found: list[str] = []
    for folder, limits in FOLDERS.items():
        drawn = draw(ROOT / folder)
        rooms, edges, circles, private = drawn.counts
        print(
            f"{folder}: {rooms} rooms, {edges} edges, {floors(drawn.edges)} floors, "
            f"{circles} cycles, {private} private accesses"
        )
        if "--edges" in words:
            for room, below in sorted(drawn.edges.items()):
                print(f"  {room or '__init__'} -> {' '.join(sorted(below)) or '-'}")
            for line in [*(f"  cycle: {' '.join(group)}" for group in drawn.module_cycles), *drawn.private]:
                print(line)
        found += faults(folder, drawn, limits)
    for fault in found:
        print(fault)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
