"""State of the GPUs of this node through NVML, asked in a child with a deadline, and which processes run on each.

A driver that hangs is the very thing that may be looked for, so its silence is a finding and delays nobody. A field
that a device does not have is None.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..detect.window import median
from . import deadline
from .saved import Damaged, from_json

TIMEOUT_S = 2.0
NO_DRIVER = "no NVIDIA driver"
_NODES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl")
_DRIVER = "the NVIDIA driver"
# Bits of NVML's clock event reasons under which a device is slower than it could be; idling is none of them.
THROTTLES = (
    (0x004, "power limit"),
    (0x008, "hardware slowdown"),
    (0x010, "synchronised with slower devices"),
    (0x020, "too hot (software)"),
    (0x040, "too hot (hardware)"),
    (0x080, "power brake"),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device at one time."""

    index: int
    name: str
    uuid: str
    pids: tuple[int, ...]  # of the processes that compute on it, as the driver counts them
    utilisation: int | None  # %, of the time in which a kernel ran
    memory_mib: int | None
    memory_total_mib: int | None
    sm_mhz: int | None
    sm_max_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    ecc_uncorrected: int | None  # since the driver was loaded
    ecc_corrected: int | None
    retired_pages: int | None  # for double-bit errors, over the device's life
    remapped_rows: int | None  # for uncorrectable errors, over the device's life
    is_reset_needed: bool | None  # a remapped row or retired page waits for it
    throttled: tuple[str, ...]

    @property
    def errors(self) -> tuple[str, ...]:
        """Return what is wrong with it by its own counters."""
        found = [
            f"{count} {what}"
            for count, what in (
                (self.ecc_uncorrected, "uncorrected ECC errors"),
                (self.retired_pages, "retired pages"),
                (self.remapped_rows, "remapped rows"),
            )
            if count
        ]
        return (*found, *(["needs a reset"] if self.is_reset_needed else []))


@dataclass(frozen=True, slots=True)
class Gpus:
    """All devices of a node, or the reason why nothing is known of them."""

    devices: tuple[Gpu, ...] = ()
    absent: str = ""
    is_fault: bool = False  # a driver that is there gave no answer, or an error


def may_be_there() -> bool:
    """Is there a device node or a driver of NVIDIA's? Opens nothing."""
    return any(map(os.path.exists, _NODES))


def prepare() -> None:
    """Import what asks the driver, where there may be one: later its disk may be frozen."""
    if may_be_there():
        with contextlib.suppress(ImportError):
            importlib.import_module("pynvml")


def ask(timeout_s: float = TIMEOUT_S) -> deadline.Question:
    """Begin to ask the driver; `answered` takes the answer later."""
    return deadline.Question(_read, timeout_s=timeout_s, of=_DRIVER)


def answered(question: deadline.Question) -> Gpus:
    """Wait for the answer of the driver, until the deadline of the question."""
    try:
        return from_json(Gpus, question.answer())
    except deadline.NoAnswer as error:
        return Gpus(absent=str(error), is_fault=True)
    except Damaged as error:
        return Gpus(absent=f"{_DRIVER} gave an answer that cannot be read: {error}", is_fault=True)


def median_of_others(devices: Sequence[Gpu], index: int, field: str) -> float | None:
    """Return the median of a field over all devices but one."""
    values = [getattr(each, field) for each in devices if each.index != index]
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _read() -> dict[str, Any]:
    """Ask the driver. Runs in the child."""
    try:
        import pynvml as nvml  # not at the top: it may lie on a disk that hangs, and few machines have a driver
    except ImportError:
        return asdict(Gpus(absent="nvidia-ml-py is not installed"))
    try:
        nvml.nvmlInit()
        devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        if isinstance(error, (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded)):
            return asdict(Gpus(absent=NO_DRIVER))
        return asdict(Gpus(absent=f"{_DRIVER}: {error}", is_fault=True))
    return asdict(Gpus(devices))


def getter(nvml: Any, handle: Any) -> Callable[..., Any]:
    """Return what calls a function of NVML for a device: None where it is not of this device, driver or binding."""

    def get(function: str, *more: Any, take: Callable[[Any], Any] = lambda found: found) -> Any:
        try:
            return take(getattr(nvml, function)(handle, *more))
        except (nvml.NVMLError, AttributeError):
            return None

    return get


def _device(nvml: Any, index: int) -> Gpu:
    get = getter(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    ecc = "nvmlDeviceGetTotalEccErrors"
    reasons = get("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    memory = get("nvmlDeviceGetMemoryInfo")
    rows = get("nvmlDeviceGetRemappedRows")
    pages_pending = get("nvmlDeviceGetRetiredPagesPendingStatus")
    is_pending = None if rows is None and pages_pending is None else bool(pages_pending or (rows and rows[2]))
    return Gpu(
        index,
        get("nvmlDeviceGetName", take=str) or "",
        get("nvmlDeviceGetUUID", take=str) or "",
        tuple(process.pid for process in get("nvmlDeviceGetComputeRunningProcesses") or ()),
        get("nvmlDeviceGetUtilizationRates", take=lambda found: found.gpu),
        None if memory is None else memory.used >> 20,
        None if memory is None else memory.total >> 20,
        get("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        get("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        get("nvmlDeviceGetPowerUsage", take=lambda found: found / 1000),
        get("nvmlDeviceGetEnforcedPowerLimit", take=lambda found: found / 1000),
        get("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        get(ecc, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        get(ecc, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        get("nvmlDeviceGetRetiredPages", nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, take=len),
        None if rows is None else rows[1],
        is_pending,
        tuple(text for bit, text in THROTTLES if reasons & bit),
    )
