"""What all fault tools have in common."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from tests.tools.traces import ROOT


@pytest.mark.parametrize("module", ["frozen", "fuse", "tmpfs", "network"])
def test_why_not_tells_who_is_not_root(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root there is a reason, and the command ends with it instead of a traceback."""
    fault = importlib.import_module(f"tools.faults.{module}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert fault.why_not() == "needs root"
    with pytest.raises(SystemExit) as caught:
        fault.main(["true"])
    assert caught.value.code == 2


@pytest.mark.parametrize("module", ["frozen", "fuse", "tmpfs", "network", "proxy", "processes", "sweep"])
def test_help_says_what_it_needs(module: str) -> None:
    """--help works for anybody, and says whether root is needed."""
    command = [sys.executable, "-m", f"tools.faults.{module}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert "root" in done.stdout
