"""Empty stand-ins for the CUDA libraries that a CUDA build of torch links to: it imports without gigabytes of them.

    python tools/stub_cuda.py SITE_PACKAGES

Written into `torch/lib`, where torch's own libraries look first. Needs gcc, nm and readelf. Every function of theirs
answers 999, CUDA's "unknown error": `torch.cuda.is_available()` is False.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

LINKED = ("torch/lib/*.so", "torch/_C*.so", "_XLAC*.so")
VENDOR = re.compile(r"lib(cu|nccl|nv)")  # libraries
# Functions of theirs that carry no version; the rest of what is undefined belongs to the C library and others.
FUNCTION = re.compile(
    r"_*(cuda|cu[A-Z]|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvshmem|nvrtc|nvJit|nvtx)"
)
UNVERSIONED = "libcudart.so.12"


class Wanted:
    """What torch's libraries look for in others."""

    def __init__(self) -> None:
        self.libraries: set[str] = set()
        self.versions: dict[str, set[str]] = defaultdict(
            set
        )  # library -> symbol versions; ld.so insists on them
        self.undefined: dict[str, set[str]] = defaultdict(set)  # symbol -> versions, "" for none
        self.defined: set[str] = set()

    def read(self, library: Path) -> None:
        self.libraries |= set(re.findall(r"NEEDED\).*\[(.*?)\]", _output("readelf", "-dW", library)))
        of = ""
        for line in _output("readelf", "-VW", library).splitlines():
            if found := re.search(r"File: (\S+)", line):
                of = found.group(1)
            if of and (found := re.search(r"Name: (\S+)\s+Flags: \S+\s+Version", line)):
                self.versions[of].add(found.group(1))
        for line in _output("nm", "-D", library).splitlines():
            *_, kind, name = line.split()
            symbol, _, version = name.partition("@")
            if kind == "U":
                self.undefined[symbol].add(version.strip("@"))
            else:
                self.defined.add(symbol)


def make_stand_ins(site_packages: Path) -> list[str]:
    """Make the libraries that are missing; answers their names."""
    linked = [path for pattern in LINKED for path in sorted(site_packages.glob(pattern))]
    wanted = Wanted()
    for path in linked:
        wanted.read(path)
    there = {path.name for path in linked}
    missing = sorted(name for name in wanted.libraries if name not in there and VENDOR.match(name))
    home = {version: name for name in missing for version in wanted.versions[name]}
    symbols: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in missing}
    for symbol, versions in wanted.undefined.items():
        if symbol in wanted.defined:
            continue
        for version in versions:
            if version in home:
                symbols[home[version]][version].append(symbol)
            elif not version and UNVERSIONED in symbols and FUNCTION.match(symbol):
                symbols[UNVERSIONED][""].append(symbol)
    for name in missing:
        _compile(site_packages / "torch" / "lib" / name, symbols[name], sorted(wanted.versions[name]))
    return missing


def _compile(path: Path, symbols: dict[str, list[str]], versions: list[str]) -> None:
    functions = sorted({symbol for names in symbols.values() for symbol in names})
    parts = {version: " ".join(f"{symbol};" for symbol in symbols[version]) for version in versions}
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder) / "stand_in.c", Path(folder) / "versions"
        source.write_text("\n".join(f"int {name}(void) {{ return 999; }}" for name in functions))
        script.write_text(
            "\n".join(f"{version} {{ {names and f'global: {names}'} }};" for version, names in parts.items())
        )
        command: list[str | Path] = [
            "gcc",
            "-w",
            "-shared",
            "-nostdlib",
            "-fPIC",
            "-o",
            path,
            source,
            f"-Wl,-soname,{path.name}",
        ]
        if versions:
            command.append(f"-Wl,--version-script,{script}")
        subprocess.run(command, check=True)


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    print(", ".join(make_stand_ins(Path(sys.argv[1]))) or "nothing is missing")
