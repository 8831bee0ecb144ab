"""Certificates of all kinds, made by openssl: expired, not valid yet, for another name, by an unknown authority."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = "IP:127.0.0.1,DNS:localhost"
_PAST, _LONG_AGO, _FAR, _FARTHER = "20200101000000Z", "20190101000000Z", "20380101000000Z", "20400101000000Z"
KINDS = {  # names in it, from, until
    "good": (_NAMES, _PAST, _FARTHER),
    "expired": (_NAMES, _LONG_AGO, _PAST),
    "young": (_NAMES, _FAR, _FARTHER),
    "elsewhere": ("DNS:elsewhere.example", _PAST, _FARTHER),
}
_CONFIG = """
[ca]
default_ca=d
[d]
database=index.txt
serial=serial
new_certs_dir=.
default_md=sha256
policy=p
unique_subject=no
[p]
commonName=supplied
"""


class Authority:
    """Signs certificates; its own is `ca.pem` in its folder."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where there is no openssl."""
        if shutil.which("openssl") is None:
            pytest.skip("no openssl here to make a certificate")
        folder.mkdir()
        self.folder = folder
        (folder / "ca.cnf").write_text(_CONFIG)
        self._openssl(
            "req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-subj", "/CN=ca", "-days", "7300"
        )

    def certificate(self, kind: str) -> tuple[Path, Path]:
        """Certificate and key."""
        names, first, last = KINDS[kind]
        (self.folder / "index.txt").write_text("")
        (self.folder / "serial").write_text("01")
        (self.folder / "names").write_text(f"subjectAltName={names}\n")
        self._openssl("req", *self._new_key(kind), "-out", "request", "-subj", f"/CN={kind}")
        words = [
            "ca",
            "-batch",
            "-config",
            "ca.cnf",
            "-cert",
            "ca.pem",
            "-keyfile",
            "ca.key",
            "-in",
            "request",
        ]
        words += [
            "-out",
            f"{kind}.pem",
            "-extfile",
            "names",
            "-notext",
            "-startdate",
            first,
            "-enddate",
            last,
        ]
        self._openssl(*words)
        return self.folder / f"{kind}.pem", self.folder / f"{kind}.key"

    @staticmethod
    def _new_key(name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*curve, "-nodes", "-keyout", f"{name}.key")

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60)
