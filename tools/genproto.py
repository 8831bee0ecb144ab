"""Generate backend/logclient_proto from proto/.

    python tools/genproto.py           write the code
    python tools/genproto.py --check   exit with 1 if what is checked in is not what would be written

The generator is old on purpose, and exact: generated code refuses runtimes older than its generator, and training
environments pin protobuf. What this one makes was seen to run on protobuf 4, 5, 6 and 7 (tests/compat). It needs
Python 3.11 or 3.12 and gets an environment of its own, inside .venv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
OUT = ROOT / "backend"
PACKAGE = "logclient_proto"
HOME = ROOT / ".venv" / "genproto"
# setuptools: the generator's pkg_resources is no longer part of newer ones
NEEDS = ["grpcio-tools==1.62.3", "setuptools<80"]
INIT = '"""Generated from proto/{where} by tools/genproto.py; never edited."""\n'


def generator() -> Path:
    """The interpreter that has the generator."""
    python = HOME / "bin" / "python"
    stamp = HOME / "needs.txt"
    if not stamp.exists() or stamp.read_text() != repr(NEEDS):
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
        stamp.write_text(repr(NEEDS))
    return python


def generate(out: Path) -> None:
    """Write the whole package below `out`."""
    sources = sorted(PROTO.rglob("*.proto"))
    command: list[str | Path] = [
        generator(),
        "-m",
        "grpc_tools.protoc",
        f"-I{PROTO}",
        f"--python_out={out}",
        f"--pyi_out={out}",
    ]
    subprocess.run([*command, *sources], check=True)
    for folder in {source.parent for source in sources} | {PROTO / PACKAGE}:
        where = folder.relative_to(PROTO)
        (out / where).mkdir(parents=True, exist_ok=True)
        (out / where / "__init__.py").write_text(INIT.format(where=where))
    (out / PACKAGE / "py.typed").write_text("")


def contents(top: Path) -> dict[str, str]:
    found = [
        path for path in (top / PACKAGE).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return {str(path.relative_to(top)): path.read_text() for path in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    if not parser.parse_args().check:
        generate(OUT)
        return 0
    with tempfile.TemporaryDirectory() as made:
        generate(Path(made))
        wanted, found = contents(Path(made)), contents(OUT)
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    for name in wrong:
        print(f"{name}: not what proto/ gives: run `python tools/genproto.py`")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
