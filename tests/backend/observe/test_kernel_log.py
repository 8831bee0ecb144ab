"""Lines of the kernel's log: which count, how old they may be, and what is said where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient_backend.observe import kernel_log
from logclient_backend.observe.kernel_log import line_of

LINES = [
    ("xid", "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus."),
    ("hung task", "INFO: task python:4711 blocked for more than 120 seconds."),
    ("out of memory", "Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB"),
    ("out of memory", "Memory cgroup out of memory: Killed process 4711 (python)"),
    ("nfs", "nfs: server filer not responding, still trying"),
    ("i/o error", "blk_update_request: I/O error, dev sda, sector 1"),
    ("i/o error", "EXT4-fs (loop0): Remounting filesystem read-only"),
    ("ecc", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0"),
    ("ecc", "NVRM: ECC errors were found"),
    (None, "EDAC MC: Ver: 3.0.0"),
    (None, "EXT4-fs (loop0): mounted filesystem with ordered data mode."),
    (None, "usb 1-1: new high-speed USB device"),
]


@pytest.mark.parametrize(("code", "text"), LINES)
def test_lines_that_may_explain_a_hang(code: str | None, text: str) -> None:
    """By what kernels and drivers write."""
    found = line_of(f"3,1,100000000,-;{text}\n SUBSYSTEM=x\n".encode(), 160.0)
    assert (None if found is None else (found.code, found.age_s, found.text)) == (code and (code, 60.0, text))


@pytest.mark.parametrize(
    "record",
    [
        b"3,1,100000000,-;usb 1-1",
        b"11,1,100000000,-;NVRM: Xid 79",  # a program wrote it, under a facility of its own
        b"NVRM: Xid 79",
        b"x,y,z;NVRM: Xid 79",
        b"",
    ],
)
def test_records_that_the_kernel_did_not_write(record: bytes) -> None:
    """Nor those that are no record."""
    assert line_of(record, 160.0) is None


def test_lines_older_than_an_hour_are_left_out() -> None:
    """Their time is that since boot."""
    record = b"3,1,1000000,-;NVRM: Xid 79"
    assert line_of(record, 1.0 + kernel_log.SINCE_S + 1) is None
    assert line_of(record, 1.0 + kernel_log.SINCE_S - 1) is not None


def test_log_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    """A path without a file, a file that is no device, and a pipe without a writer have a reason, without a wait."""
    assert kernel_log.read(str(tmp_path / "none")).absent.endswith("No such file or directory")
    (tmp_path / "file").write_text("3,1,1,-;NVRM: Xid 79\n")
    assert "is no kernel log" in kernel_log.read(str(tmp_path / "file")).absent
    os.mkfifo(tmp_path / "pipe")
    assert "is no kernel log" in kernel_log.read(str(tmp_path / "pipe")).absent
    assert kernel_log.read("/dev/null") == kernel_log.KernelLog()
