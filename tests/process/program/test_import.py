"""R2-20: what `import logclient` pulls in, cold, from a slow file system, and in 64 processes at once.

What is right: a checked list of modules of the standard library and our own, no network, no subprocess, no write.
How long it takes is measured by `tools/bench/`.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.faults import fuse
from tools.faults.fuse import Fuse

from .. import scripts

ROOT = Path(__file__).resolve().parents[3]

# All that is loaded beyond an interpreter that has not even its `site` (-S), most of which others have loaded anyway.
# A new one needs a reason, in milliseconds.
STANDARD = {
    *("errno", "itertools", "_functools", "_operator", "_collections", "_stat", "_struct"),  # built in
    *("os", "os.path", "posixpath", "genericpath", "stat", "_collections_abc"),  # `site` loads them
    *("__future__", "struct", "types", "zlib", "fcntl", "mmap", "select", "_blake2"),  # 0.1 each
    *("array", "collections", "collections.abc", "keyword", "operator", "reprlib"),  # array brings these: 1.5
}
CLIENT = ROOT / "logclient"
OURS = {
    ".".join(("logclient", *path.relative_to(CLIENT).with_suffix("").parts)).removesuffix(".__init__")
    for path in CLIENT.rglob("*.py")
    if path.relative_to(CLIENT).parts[0] not in ("integrations", "compat")
}
NOT_YET = {"logclient.session.start", "logclient.session.ending"}  # `init` loads them

NEW = """
import sys
before = set(sys.modules)
import logclient
print(" ".join(sorted(set(sys.modules) - before)))
"""


def modules_added(cwd: Path, path: Path = ROOT) -> set[str]:
    """Modules that the import of the package in that folder adds in a fresh interpreter."""
    env = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-S", "-c", NEW]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=cwd, timeout=60, check=True)
    return set(done.stdout.split())


def test_import_adds_a_checked_list_of_modules(tmp_path: Path) -> None:
    """Nothing but our own client modules and a short list of the standard library's (R2-20)."""
    added = modules_added(tmp_path)
    assert "logclient" in added
    allowed = STANDARD | OURS - NOT_YET
    assert added <= allowed, sorted(added - allowed)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_import_makes_no_process_no_socket_and_writes_nothing(tmp_path: Path) -> None:
    """System calls of the import: no process, thread, socket, nor a file opened for writing (R2-20)."""
    trace = tmp_path / "trace"
    words = ["strace", "-f", "-o", str(trace), "-e", "trace=%process,%network,openat,mkdir,unlink,rename"]
    env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words[5] += ",access,faccessat,faccessat2"
    code = "import os; os.access('/begin', 0); import logclient; os.access('/end', 0)"
    done = subprocess.run(
        [*words, sys.executable, "-S", "-c", code], env=env, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = trace.read_text()
    during = text[text.index('("/begin"') : text.index('("/end"')].splitlines()
    calls = [re.sub(r"^\d+ +", "", line) for line in during[1:]]
    assert any("logclient" in call for call in calls)
    for call in calls[:-1]:
        assert call.startswith("openat("), call
        assert "O_WRONLY" not in call, call
        assert "O_RDWR" not in call, call
        assert "O_CREAT" not in call, call


@pytest.mark.slow
def test_import_in_64_processes_at_once(tmp_path: Path, run_dir: Path) -> None:
    """All 64 import it, with the byte code not yet cached, and none says anything (R2-20)."""
    shutil.copytree(
        ROOT / "logclient", tmp_path / "fresh" / "logclient", ignore=shutil.ignore_patterns("__pycache__")
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "fresh")}
    words = [
        sys.executable,
        "-S",
        "-c",
        "import logclient; print(logclient.__file__, len(logclient.__all__))",
    ]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(words, cwd=tmp_path, env=env, text=True, stdout=pipe, stderr=pipe) for _ in range(64)
    ]
    shown = {
        (ended.code, ended.out, ended.err) for ended in (scripts.end(process, 60) for process in started)
    }
    (only,) = shown
    assert only[0] == 0, only
    assert only[1].startswith(str(tmp_path / "fresh")), only
    assert only[2] == "", only


@pytest.mark.root
@pytest.mark.skipif(fuse.why_not() is not None, reason=fuse.why_not() or "")
def test_import_from_a_slow_file_system_asks_it_for_little(tmp_path: Path) -> None:
    """Over a network each file costs round trips: one open for each module, and nothing written (R2-20)."""
    with Fuse(cache_s=1.0) as mount:
        shutil.copytree(ROOT / "logclient", mount.backing / "logclient")
        compileall.compile_dir(
            mount.backing / "logclient", quiet=1, stripdir=mount.backing, prependdir=mount.path
        )
        before = mount.counts()
        added = modules_added(tmp_path, mount.path)
        ours = len([name for name in added if name.startswith("logclient")])
        after = mount.counts()
        calls = {op: after[op] - before[op] for op in after if after[op] != before[op]}
        assert calls["open"] <= ours + 2, calls
        assert calls.get("write", 0) == calls.get("create", 0) == 0, calls
