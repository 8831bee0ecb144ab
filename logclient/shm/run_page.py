"""The address of a run's page below that of its collector. Pure; `urllib.parse` is 5 ms of import."""

from __future__ import annotations

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def page_of_run(page: str, run_id: str) -> str:
    """Return the address of a run; empty where the collector's page is not known."""
    if not page:
        return ""
    name = run_id.encode("utf-8", "surrogatepass")
    return f"{page}/#/run/" + "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name)
