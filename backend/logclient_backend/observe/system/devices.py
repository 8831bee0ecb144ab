"""The GPUs of this node as numbers: NVIDIA's through NVML, behind them those that have files in /sys (`sysfs_gpus.py`).

Runs in the child of a `RepeatedQuestion`, since drivers hang. A device or a driver that has no such field costs that
field alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..gpu import NO_DRIVER, THROTTLES, getter
from . import sysfs_gpus

_ENERGY_EVERY = 6  # samples: it takes 4 ms of CPU on an H200, where all the rest takes 0.1 ms
ABSENT = "absent"  # key of an answer without devices: why there are none, and that nobody need ask again


def begin() -> Callable[[], dict[str, Any]]:
    """Open the drivers; returns what reads all devices: values by index, and memory of each process, by PID."""
    read = _nvidia()
    cards = sysfs_gpus.find()
    if not cards:
        return read

    def read_all() -> dict[str, Any]:
        answer = read()
        devices = [*answer.get("devices", ()), *(card.read() for card in cards)]
        return {"devices": devices, "memory": answer.get("memory", {})}

    return read_all


def _nvidia() -> Callable[[], dict[str, Any]]:
    try:
        import pynvml as nvml  # not at the top: it may lie on a disk that hangs, and few machines have a driver
    except ImportError:
        return lambda: {ABSENT: "nvidia-ml-py is not installed"}
    try:
        nvml.nvmlInit()
        handles = [_handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
        return lambda: {ABSENT: NO_DRIVER}
    return _Driver(nvml, handles).read


def _handle(nvml: Any, index: int) -> Any:
    """Return the handle of a device; None where it is lost, which costs no other."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return None


class _Driver:
    """The driver, opened."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._asked = 0
        self._energy: dict[int, float | None] = {}  # by index

    def read(self) -> dict[str, Any]:
        memory: dict[int, int] = {}
        devices: list[dict[str, float]] = []
        for index, handle in enumerate(self._handles):
            if handle is None:
                devices.append({})
                continue
            get = getter(self._nvml, handle)
            if self._asked % _ENERGY_EVERY == 0:
                self._energy[index] = get(
                    "nvmlDeviceGetTotalEnergyConsumption", take=lambda found: found / 1000
                )
            values = {**_values(self._nvml, get), "energy_j": self._energy[index]}
            devices.append({name: value for name, value in values.items() if value is not None})
            for process in get("nvmlDeviceGetComputeRunningProcesses") or ():
                memory[process.pid] = memory.get(process.pid, 0) + (process.usedGpuMemory or 0)
        self._asked += 1
        return {"devices": devices, "memory": memory}


def _values(nvml: Any, get: Callable[..., Any]) -> dict[str, float | None]:
    used, ecc = get("nvmlDeviceGetMemoryInfo"), "nvmlDeviceGetTotalEccErrors"
    reasons = get("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "utilisation_percent": get("nvmlDeviceGetUtilizationRates", take=lambda found: found.gpu),
        "memory_bytes": None if used is None else used.used,
        "memory_total_bytes": None if used is None else used.total,
        "power_w": get("nvmlDeviceGetPowerUsage", take=lambda found: found / 1000),
        "power_limit_w": get("nvmlDeviceGetEnforcedPowerLimit", take=lambda found: found / 1000),
        "clock_mhz": get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "temperature_c": get("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "throttled": None if reasons is None else float(any(bit & reasons for bit, _ in THROTTLES)),
        "ecc_uncorrected": get(ecc, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "ecc_corrected": get(ecc, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
    }
