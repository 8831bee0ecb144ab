"""GPUs of AMD and Intel as numbers, by the files that their kernel drivers keep in /sys; no library is needed.

Runs in the child of a `RepeatedQuestion`, since drivers hang. The files are those of the drivers amdgpu (kernel page
"GPU Power/Thermal Controls and Monitoring") and i915 and xe (`Documentation/ABI/testing/sysfs-driver-intel-*-hwmon`).
A file that is not there, or cannot be read now, costs its field alone. A card without sensors, as an integrated one of
Intel's, is left out. Memory of single processes is not known.
"""

from __future__ import annotations

import os
import re
from glob import glob

ROOT = "/sys/class/drm"
_MICRO, _MILLI = 1e-6, 1e-3
_ERRORS = re.compile(r"^(ue|ce): (\d+)", re.MULTILINE)  # of amdgpu, uncorrected and corrected
_AMD, _INTEL = "0x1002", "0x8086"

# field: (files, of which the first that is there counts; factor). `hwmon/` stands for the folder of the sensors
_FIELDS: dict[str, dict[str, tuple[tuple[str, ...], float]]] = {
    _AMD: {
        "utilisation_percent": (("gpu_busy_percent",), 1),
        "memory_bytes": (("mem_info_vram_used",), 1),
        "memory_total_bytes": (("mem_info_vram_total",), 1),
        "power_w": (("hwmon/power1_average", "hwmon/power1_input"), _MICRO),
        "power_limit_w": (("hwmon/power1_cap",), _MICRO),
        "energy_j": (("hwmon/energy1_input",), _MICRO),
        "clock_mhz": (("hwmon/freq1_input",), _MICRO),
        "memory_clock_mhz": (("hwmon/freq2_input",), _MICRO),
        "temperature_c": (("hwmon/temp1_input",), _MILLI),
    },
    _INTEL: {
        "power_limit_w": (("hwmon/power1_max",), _MICRO),
        "energy_j": (("hwmon/energy1_input",), _MICRO),
        "clock_mhz": (("tile0/gt0/freq0/act_freq", "drm/card*/gt_act_freq_mhz"), 1),
        "temperature_c": (("hwmon/temp2_input", "hwmon/temp1_input"), _MILLI),
    },
}


class Card:
    """One device."""

    def __init__(self, device: str, sensors: str, maker: str) -> None:
        """`device`: its folder of the bus; `sensors`: that of hwmon below it."""
        self.device = device
        self._sensors = sensors
        self._maker = maker

    def read(self) -> dict[str, float]:
        """Return the fields that it has now."""
        found: dict[str, float] = {}
        for name, (files, factor) in _FIELDS[self._maker].items():
            value = next((each for file in files if (each := self._number(file)) is not None), None)
            if value is not None:
                found[name] = value * factor
        if self._maker == _AMD:
            counts = dict(_ERRORS.findall(_text(f"{self.device}/ras/umc_err_count")))
            for name, short in (("ecc_uncorrected", "ue"), ("ecc_corrected", "ce")):
                if short in counts:
                    found[name] = float(counts[short])
        return found

    def _number(self, file: str) -> float | None:
        path = f"{self._sensors}/{file[6:]}" if file.startswith("hwmon/") else f"{self.device}/{file}"
        if "*" in path:
            path = next(iter(sorted(glob(path))), "")
        try:
            return float(_text(path))
        except ValueError:
            return None


def find() -> list[Card]:
    """Return the cards with sensors, in the order of their addresses on the bus."""
    found = {}
    for card in glob(f"{ROOT}/card*"):
        if not os.path.basename(card)[4:].isdecimal():
            continue  # a connector of a card
        device = os.path.realpath(f"{card}/device")
        maker = _text(f"{device}/vendor").strip()
        sensors = sorted(glob(f"{device}/hwmon/hwmon*"))
        if maker in _FIELDS and sensors:
            found[device] = Card(device, sensors[0], maker)
    return [found[device] for device in sorted(found)]


def _text(path: str) -> str:
    """Return what a file says; empty where it cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
