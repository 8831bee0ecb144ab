"""The mount that a process most likely waits for, from texts of /proc as kernels write them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from logclient_backend.observe import mounts
from logclient_backend.observe.mounts import Awaited, Mount

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 0:20 / /dev/shm rw - tmpfs tmpfs rw
30 22 0:44 / /mnt/a\\040b rw,relatime shared:7 master:2 - nfs4 server:/export\\040x rw,vers=4.2
31 22 0:45 / /mnt/fast rw - fuse.gcsfuse bucket rw
32 22 8:17 / /data rw - xfs /dev/sdb1 rw
33 32 8:33 / /data/deep rw - ext4 /dev/sdc1 rw
34 22 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw
broken line
"""
THERE = mounts.mounts_of(MOUNTINFO)
NFS = {5: "/mnt/a b/ckpt/model.pt"}


def path_of(found: Awaited | None) -> str | None:
    return None if found is None else found.path


def test_mountinfo_is_read_with_its_escapes() -> None:
    """Optional fields, blanks in names; a line that is none is passed over."""
    assert len(THERE) == 8
    assert Mount("/mnt/a b", "nfs4", "server:/export x", "0:44") in THERE
    on = {
        path: mounts.mount_of(path, THERE) for path in ("/data/x", "/data/deep/x", "/database", "/etc/hosts")
    }
    assert {path: mount.path for path, mount in on.items() if mount} == {
        "/data/x": "/data",
        "/data/deep/x": "/data/deep",
        "/database": "/",
        "/etc/hosts": "/etc/hosts",
    }


@pytest.mark.parametrize(
    ("files", "call", "functions", "path", "because"),
    [
        (NFS, ("fsync", 5), (), "/mnt/a b", "it is in fsync of /mnt/a b/ckpt/model.pt"),
        ({**NFS, 6: "/data/x"}, ("write", 6), ("rpc_wait_bit_killable",), "/data", "it is in write of /data/x"),
        (NFS, ("fsync", 9), ("rpc_wait_bit_killable",), "/mnt/a b", "rpc_wait_bit_killable, and it has /mnt/a b"),
        ({}, None, ("request_wait_answer", "fuse_simple_request"), "/mnt/fast", "the kernel is in request_wait_answer"),
        ({}, None, ("xfs_buf_lock",), "/data", "the kernel is in xfs_buf_lock"),
        ({}, None, ("jbd2_log_wait_commit", "ext4_sync_file"), None, ""),  # of two disks, either
        ({3: "/data/deep/x"}, None, ("jbd2_log_wait_commit",), "/data/deep", "it has /data/deep/x there"),
        ({3: "/x", 4: "/etc/hosts"}, None, ("ext4_sync_file",), "/", "the kernel is in ext4_sync_file"),
        ({-1: "/mnt/a b"}, None, ("folio_wait_bit_common",), "/mnt/a b", "it has its working directory there"),
        ({**NFS, 7: "/mnt/fast/x"}, None, ("folio_wait_bit_common",), None, ""),  # of two, either
        ({3: "/data/x"}, None, ("folio_wait_bit_common",), None, ""),
        ({3: "/dev/shm/x"}, ("write", 3), ("folio_wait_bit_common",), None, ""),
        ({3: "/data/x"}, None, ("ovl_write_iter", "xfs_buf_lock"), None, ""),  # below an overlay, on no mount of ours
        ({}, None, (), None, ""),
    ],
)  # fmt: skip
def test_most_likely_mount(
    files: dict[int, str],
    call: tuple[str, int] | None,
    functions: tuple[str, ...],
    path: str | None,
    because: str,
) -> None:
    """The file of the system call, then the kernel's functions, then the only network file system; else nothing."""
    found = mounts.awaited(THERE, files, call, functions)
    assert path_of(found) == path
    if found is not None:
        assert because in found.because and found.text.startswith(f"most likely for {path} (")


def test_system_call_and_files_of_a_real_process(tmp_path: os.PathLike[str]) -> None:
    """A process that reads has its system call in /proc; its files are known by readlink, removed ones too."""
    source = """
import os, sys
file = open("there", "w+"); gone = open("gone", "w+"); os.remove("gone")
print(file.fileno(), gone.fileno(), flush=True)
os.read(0, 1)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, text=True
    )
    try:
        assert child.stdout is not None
        there, gone = map(int, child.stdout.readline().split())
        found = mounts.files_of(str(child.pid))
        base = os.path.realpath(tmp_path)
        assert found[-1] == base and found[there] == f"{base}/there" and found[gone] == f"{base}/gone"
        assert 0 not in found  # a pipe is no file
    finally:
        child.communicate()
    assert mounts.files_of("0") == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_system_call_is_read() -> None:
    """Number and first argument; one that works on no file, a process that runs, nothing."""
    assert mounts.call_of("74 0x7 0x0 0x0 0x7ffd 0x7f22") == ("fsync", 7)
    for text in ("230 0x0 0x0 0x7ff 0x7f2", "running", "-1 0x7ffd 0x7f", "", "74"):
        assert mounts.call_of(text) is None
