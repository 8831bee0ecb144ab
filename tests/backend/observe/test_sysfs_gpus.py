"""GPUs by the files of their kernel drivers: fields, units, order, and what is not there.

The files are laid out as the kernel's documentation has them; no machine here has such a device.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient_backend.observe.system import devices, sysfs_gpus

AMD = {
    "vendor": "0x1002\n",
    "gpu_busy_percent": "97\n",
    "mem_info_vram_used": "1073741824\n",
    "mem_info_vram_total": "206158430208\n",
    "ras/umc_err_count": "ue: 2\nce: 31\n",
    "hwmon/hwmon4/power1_input": "712000000\n",
    "hwmon/hwmon4/power1_cap": "750000000\n",
    "hwmon/hwmon4/freq1_input": "2100000000\n",
    "hwmon/hwmon4/freq2_input": "1300000000\n",
    "hwmon/hwmon4/temp1_input": "61000\n",
}
XE = {
    "vendor": "0x8086\n",
    "tile0/gt0/freq0/act_freq": "1550\n",
    "hwmon/hwmon2/energy1_input": "5000000000\n",
    "hwmon/hwmon2/power1_max": "300000000\n",
    "hwmon/hwmon2/temp2_input": "55000\n",
}


@pytest.fixture
def drm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of cards."""
    root = tmp_path / "class" / "drm"
    root.mkdir(parents=True)
    monkeypatch.setattr(sysfs_gpus, "ROOT", str(root))
    return root


def card(drm: Path, number: int, address: str, files: dict[str, str]) -> Path:
    """Lay out a device on the bus, and the link to it."""
    device = drm.parents[1] / "bus" / address
    for name, text in files.items():
        path = device / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (drm / f"card{number}").mkdir()
    (drm / f"card{number}" / "device").symlink_to(device)
    return device


def test_fields_of_amd_have_their_units(drm: Path) -> None:
    card(drm, 1, "0000:c1:00.0", AMD)
    (found,) = sysfs_gpus.find()
    assert found.read() == pytest.approx(
        {
            "utilisation_percent": 97,
            "memory_bytes": 1 << 30,
            "memory_total_bytes": 192 << 30,
            "power_w": 712,
            "power_limit_w": 750,
            "clock_mhz": 2100,
            "memory_clock_mhz": 1300,
            "temperature_c": 61,
            "ecc_uncorrected": 2,
            "ecc_corrected": 31,
        }
    )


def test_file_that_goes_or_makes_no_sense_costs_its_field_alone(drm: Path) -> None:
    """A card that sleeps answers with an error; the mean of the power counts where there is one."""
    device = card(drm, 0, "0000:c1:00.0", {**AMD, "hwmon/hwmon4/power1_average": "700000000\n"})
    (found,) = sysfs_gpus.find()
    (device / "gpu_busy_percent").unlink()
    (device / "mem_info_vram_used").write_text("none\n")
    (device / "ras" / "umc_err_count").write_text("?")
    values = found.read()
    assert values["power_w"] == pytest.approx(700)
    assert values.keys().isdisjoint({"utilisation_percent", "memory_bytes", "ecc_corrected"})


def test_cards_are_in_the_order_of_the_bus_and_others_are_left_out(drm: Path) -> None:
    """Connectors, cards without sensors and unknown makers are none."""
    card(drm, 0, "0000:c1:00.0", AMD)
    card(drm, 1, "0000:03:00.0", XE)
    card(drm, 2, "0000:00:02.0", {"vendor": "0x8086\n"})
    card(drm, 3, "0000:05:00.0", {"vendor": "0x10de\n", "hwmon/hwmon1/temp1_input": "1\n"})
    (drm / "card0-DP-1").mkdir()
    found = sysfs_gpus.find()
    assert [Path(each.device).name for each in found] == ["0000:03:00.0", "0000:c1:00.0"]
    assert found[0].read() == pytest.approx(
        {"power_limit_w": 300, "energy_j": 5000, "clock_mhz": 1550, "temperature_c": 55}
    )


def test_old_driver_of_intel_has_its_clock_elsewhere(drm: Path) -> None:
    files = {name: text for name, text in XE.items() if "act_freq" not in name}
    card(drm, 1, "0000:03:00.0", {**files, "drm/card1/gt_act_freq_mhz": "1200\n"})
    (found,) = sysfs_gpus.find()
    assert found.read()["clock_mhz"] == 1200


def test_they_come_behind_those_of_nvidia(drm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver of NVIDIA's they are all; without a card nothing changes."""
    monkeypatch.setattr(devices, "_nvidia", lambda: lambda: {"devices": [{"power_w": 1.0}], "memory": {7: 8}})
    assert devices.begin()() == {"devices": [{"power_w": 1.0}], "memory": {7: 8}}
    card(drm, 0, "0000:c1:00.0", AMD)
    both = devices.begin()()
    assert [each["power_w"] for each in both["devices"]] == pytest.approx([1, 712]) and both["memory"] == {
        7: 8
    }
    monkeypatch.setattr(devices, "_nvidia", lambda: lambda: {devices.ABSENT: "no driver"})
    assert len(devices.begin()()["devices"]) == 1
