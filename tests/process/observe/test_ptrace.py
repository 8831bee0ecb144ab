"""Where a stack may not be read (R2-30): why, what to set, and what /proc gives without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ..disturbed import ROOT
from .plant import PATIENCE_S, asked, of, program, why

NOBODY = 65534
IDLE = "def f(): time.sleep(1000)\nready()\nf()\n"
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
NO_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"]


def needs_nobody() -> None:
    """Skip where the interpreter cannot be run as another user."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (Debian: util-linux)")
    try:
        done = subprocess.run([*AS_NOBODY, sys.executable, "-c", "import click"], timeout=PATIENCE_S, cwd="/")
    except OSError:
        pytest.skip("another user may not run this interpreter")
    if done.returncode:
        pytest.skip("another user may not run this interpreter")


@pytest.mark.root
def test_another_users_process_is_shown_as_proc_has_it(tmp_path: Path) -> None:
    """Its state and CPU; the reason names the other user; that nobody can tell is an exit code."""
    needs_nobody()
    with program(tmp_path, IDLE) as begun:
        found, code = why(*of(begun), wrap=AS_NOBODY)
        (each,) = found["processes"]
        assert "it is another user's process: run this command as that user, or as root" in each["no_stack"]
        assert (found["verdict"], code, each["kernel_state"], each["cpu_share"]) == ("cannot tell", 4, "S", 0)
        assert "sleeps; no stack: it is another user's" in found["text"]
        assert "another user's process" in asked(*of(begun), wrap=AS_NOBODY).stdout


@pytest.mark.root
def test_ranks_that_may_not_be_traced_are_shown_and_compared_by_what_the_kernel_says(
    tmp_path: Path, run_dir: Path
) -> None:
    """As root without the capability, as in a container: last steps, CPU, what to set, and the odd rank."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (Debian: util-linux)")
    source = f"""
    import ctypes, logclient
    run = logclient.init(project="why", name="refused", dir={str(run_dir)!r}, quiet=True)
    run.log(7, {{"loss": 1.0}})
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: as a setuid program is
    ready()
    while RANK == 1: pass
    time.sleep(1000)
    """
    with program(tmp_path, source, count=4, LOGCLIENT_RUN_ID="refused") as begun:
        found, code = why("refused", "--late-after", 0.2, wrap=NO_PTRACE)
        assert (found["verdict"], code) == ("cannot tell", 4), found["text"]
        assert all("--cap-add SYS_PTRACE" in each["no_stack"] for each in found["processes"])
        assert [each["step"] for each in found["processes"]] == [7] * 4
        assert found["pids"] == [begun[1].pid] and "of a core; no stack: ptrace" in found["text"], found[
            "text"
        ]


@pytest.mark.root
@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (0, "ptrace is not permitted here: run as root"),
        (1, "sysctl kernel.yama.ptrace_scope=0"),
        (2, "kernel.yama.ptrace_scope is 2: run as root"),
        (3, "forbids it to everybody until the next boot"),
    ],
)
def test_yama_is_named_with_what_to_set(tmp_path: Path, scope: int, said: str) -> None:
    """For a user who may trace by his uid alone; the file stands in for the kernel's."""
    needs_nobody()
    file = tmp_path / "ptrace_scope"
    file.write_text(f"{scope}\n")
    for path in (file, *file.parents):
        if path.owner() == "root" and path != Path("/") and str(path).startswith(f"{tempfile.gettempdir()}/"):
            path.chmod(0o755)
    source = (
        "import os, sys; from logclient_backend.observe.ptrace import why_refused; "
        "print(why_refused(os.getpid(), yama=sys.argv[1]))"
    )
    words = [*AS_NOBODY, sys.executable, "-c", source, str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0 and said in done.stdout, done
