"""Check of the devices of one rank: name, free memory, clocks, and a matmul rate.

The coordinator decides when to measure, so that all ranks do at once: {"warm": i, "seq": n} prepares the i-th device of
this rank, {"measure": i, "seq": n} measures it, and each is answered with {"done": n}. A rate is taken by the wall
clock, since a rank that gets no CPU is slow, too.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import Any

import psutil

from .lines import Line, Message

WINDOW_S = 1.0
_CPU_SIZE, _CUDA_SIZE = 192, 4096
_QUERY = "clocks.sm,clocks.max.sm,temperature.gpu,power.draw,clocks_event_reasons.active"


def own_indexes(count: int, local_rank: int, local_ranks: int) -> list[int]:
    """Return the devices of a rank, of `count` that it sees: ranks of one host share them out."""
    if count >= local_ranks:
        return list(range(local_rank, count, local_ranks))
    return [local_rank % count] if count else []


def check(line: Line, given: dict[str, Any]) -> Message:
    """Report the devices, then answer requests until this process is killed."""
    import torch

    torch.set_num_threads(1)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    indexes = own_indexes(count, given["local_rank"], given["local_ranks"])
    made: list[_Device] = [_Cuda(torch, index) for index in indexes] or [_Cpu(torch)]
    line.send(
        {
            "devices": [device.name for device in made],
            "ids": [device.id for device in made],
            "uuids": [device.uuid for device in made],
        }
    )
    while not line.is_closed:
        for message in line.wait(60.0):
            device = made[int(message["warm" if "warm" in message else "measure"])]
            line.send({"stage": next(iter(message)), "device": device.id})
            if "warm" in message:
                device.warm()
                line.send({"done": message["seq"], **device.facts()})
            else:
                line.send({"done": message["seq"], **device.measured()})
    return {}


class _Device:
    """A device on which matrices are multiplied."""

    id: str  # of this host
    name: str
    uuid = ""
    size: int
    per_turn: int

    def __init__(self, torch: Any, device: Any, dtype: Any) -> None:
        self._torch, self._device, self._dtype = torch, device, dtype
        self._matrix: Any = None

    def warm(self) -> None:
        self._matrix = self._torch.full((self.size, self.size), 0.5, device=self._device, dtype=self._dtype)
        self._turn()

    def _turn(self) -> None:
        for _ in range(self.per_turn):
            self._matrix @ self._matrix

    def measured(self) -> Message:
        """Return floating-point operations a second, over `WINDOW_S`."""
        turns, before = 0, time.monotonic()
        while (took := time.monotonic() - before) < WINDOW_S:
            self._turn()
            turns += 1
        return {"rate": turns * self.per_turn * 2.0 * self.size**3 / took}

    def facts(self) -> Message:
        raise NotImplementedError


class _Cpu(_Device):
    size, per_turn = _CPU_SIZE, 1

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, "cpu", torch.float32)
        self.id, self.name = "cpu", _cpu_name()

    def facts(self) -> Message:
        memory = psutil.virtual_memory()
        clocks = psutil.cpu_freq()
        return {
            "free_bytes": memory.available,
            "total_bytes": memory.total,
            "clock_mhz": clocks.current if clocks else None,
            "max_clock_mhz": clocks.max or None if clocks else None,
            "cores": len(os.sched_getaffinity(0)),
        }


class _Cuda(_Device):
    size, per_turn = _CUDA_SIZE, 8

    def __init__(self, torch: Any, index: int) -> None:
        super().__init__(torch, torch.device("cuda", index), torch.bfloat16)
        properties = torch.cuda.get_device_properties(index)
        self.uuid = str(getattr(properties, "uuid", ""))
        self.id, self.name, self._index = f"cuda:{index}", properties.name, index

    def _turn(self) -> None:
        super()._turn()
        self._torch.cuda.synchronize(self._device)

    def measured(self) -> Message:
        """Measure while the driver's own program reads the clocks: at rest they are low on a sound device, too."""
        query = _query(self.uuid)
        found = super().measured()
        return found | _answer(query)

    def facts(self) -> Message:
        free, total = self._torch.cuda.mem_get_info(self._index)
        return {"free_bytes": free, "total_bytes": total}


def _query(uuid: str) -> subprocess.Popen[str] | None:
    """Start the driver's own program; None where there is none."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    words = ["nvidia-smi", f"--id={name}", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _answer(query: subprocess.Popen[str] | None) -> Message:
    """Return its answer; nothing where it failed. The deadline of this check is that of its answer, too."""
    if query is None:
        return {}
    words = [word.strip() for word in query.communicate()[0].split(",")]
    if query.returncode or len(words) != len(_QUERY.split(",")):
        return {}
    clock, most, temperature, power, reasons = words
    return {
        "clock_mhz": _number(clock),
        "max_clock_mhz": _number(most),
        "temperature": _number(temperature),
        "power_w": _number(power),
        "throttle_reasons": reasons,
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for text in file:
                if text.startswith("model name"):
                    return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
