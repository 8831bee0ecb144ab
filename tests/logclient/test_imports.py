"""What `import logclient` costs a training process: nothing but a little of the standard library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "logclient"

HEAVY = [
    "asyncio",
    "click",
    "ctypes",
    "dataclasses",
    "google",
    "grpc",
    "json",
    "logclient_backend",
    "logclient_proto",
    "multiprocessing",
    "numpy",
    "psutil",
    "rich",
    "socket",
    "ssl",
    "subprocess",
    "torch",
    "zstandard",
]

# A bare interpreter (-S: no .pth file has loaded anything before us) that could import all that is installed.
LIST_MODULES = """
import sys
sys.path[:0] = sys.argv[1:]
import logclient
print(" ".join(sys.modules))
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    installed = sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", "-c", LIST_MODULES, str(ROOT), installed, str(ROOT / "backend")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {module.partition(".")[0] for module in done.stdout.split()}


def test_import_loads_nothing_heavy(loaded: set[str]) -> None:
    """No thread, socket, framework, backend, nor a slow module of the standard library comes with the client."""
    assert "logclient" in loaded
    assert loaded.isdisjoint(HEAVY), f"import logclient loads {sorted(loaded.intersection(HEAVY))}"


def test_import_loads_only_the_standard_library(loaded: set[str]) -> None:
    """Whatever is installed beside it, the client takes nothing of it."""
    foreign = {m for m in loaded if not m.startswith("_")} - sys.stdlib_module_names - {"logclient"}
    assert not foreign


def test_client_source_names_only_the_standard_library() -> None:
    """No import statement, at the top or inside a function, names a package (but integrations, launch, read)."""
    foreign = {}
    doorways = {"launch.py": {"multiprocess"}, "pickling.py": {"dill"}, "reading.py": {"logclient_backend"}}
    doorways["frozen_program.py"] = {"logclient_backend"}  # the process is the agent's
    for path in sorted(CLIENT.rglob("*.py")):
        if path.relative_to(CLIENT).parts[0] in ("integrations", "compat"):
            continue
        names = imported_packages(ast.parse(path.read_text(), str(path))) - doorways.get(path.name, set())
        if strange := names - sys.stdlib_module_names - {"logclient"}:
            foreign[str(path.relative_to(ROOT))] = sorted(strange)
    assert not foreign, json.dumps(foreign, indent=1)


def imported_packages(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names
