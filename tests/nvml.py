"""Stand-ins for the NVIDIA driver's library, `libnvidia-ml.so.1`, compiled from C: one that answers, others that fail.

Set LD_LIBRARY_PATH to the folder before a process starts.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# Eight devices; the fourth is slow, hot and has errors. FAKE_PIDS: the PIDs on the devices, in their order.
ANSWERS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define N(handle) ((int)(long)(handle) - 1)
typedef void *Device;
int nvmlInitWithFlags(unsigned flags) { return 0; }
const char *nvmlErrorString(int code) { return "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *found) { *found = (Device)(long)(index + 1); return 0; }
int nvmlDeviceGetName(Device d, char *name, unsigned size) { snprintf(name, size, "Fake H200"); return 0; }
int nvmlDeviceGetUUID(Device d, char *name, unsigned size) { snprintf(name, size, "GPU-%d", N(d)); return 0; }
int nvmlDeviceGetUtilizationRates(Device d, unsigned *found) { found[0] = N(d) == 3 ? 0 : 100; found[1] = 7; return 0; }
int nvmlDeviceGetMemoryInfo(Device d, unsigned long long *found) {
    found[0] = 100ull << 30; found[1] = 60ull << 30; found[2] = 40ull << 30; return 0;
}
int nvmlDeviceGetClockInfo(Device d, int type, unsigned *mhz) {
    *mhz = N(d) == 3 ? 345 : 1980; return type == 1 ? 0 : 2;
}
int nvmlDeviceGetMaxClockInfo(Device d, int type, unsigned *mhz) { *mhz = 1980; return 0; }
int nvmlDeviceGetPowerUsage(Device d, unsigned *mw) { *mw = N(d) == 3 ? 90500 : 500000 + N(d); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(Device d, unsigned *mw) { *mw = 700000; return 0; }
int nvmlDeviceGetTemperature(Device d, int sensor, unsigned *c) { *c = N(d) == 3 ? 88 : 61; return 0; }
int nvmlDeviceGetTotalEccErrors(Device d, int type, int counter, unsigned long long *n) {
    *n = N(d) == 3 && type == 1 && counter == 0 ? 2 : 0; return 0;
}
int nvmlDeviceGetRemappedRows(Device d, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    *corrected = *failed = 0; *not = N(d) == 3; *pending = N(d) == 3; return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device d, unsigned long long *bits) {
    *bits = N(d) == 3 ? 0x48 : 1; return 0;
}
struct Process { unsigned pid; unsigned long long used; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, struct Process *found) {
    char words[4096], *word;
    int at = 0;
    snprintf(words, sizeof words, "%s", getenv("FAKE_PIDS") ? getenv("FAKE_PIDS") : "");
    for (word = strtok(words, ","); word && at < N(d); word = strtok(NULL, ",")) at++;
    if (!word) { *count = 0; return 0; }
    if (!found) { *count = 1; return 7; }
    memset(found, 0, sizeof *found);
    found->pid = atoi(word);
    *count = 1;
    return 0;
}
"""
HANGS = r"""
#include <unistd.h>
int nvmlInitWithFlags(unsigned flags) { for (;;) pause(); }
"""
FAILS = r"""
const char *nvmlErrorString(int code) { return "GPU is lost"; }
int nvmlInitWithFlags(unsigned flags) { return 15; }
"""
NOT_LOADED = r"""
const char *nvmlErrorString(int code) { return "Driver Not Loaded"; }
int nvmlInitWithFlags(unsigned flags) { return 9; }
"""
CRASHES = r"""
int nvmlInitWithFlags(unsigned flags) { return *(volatile int *)8; }
"""


def library(folder: Path, source: str) -> str:
    """Compile the library into the folder and return the folder, for LD_LIBRARY_PATH."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvml.c"
    path.write_text(source)
    words = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(path)]
    subprocess.run(words, check=True, timeout=120)
    return str(folder)
