"""`blake2b`, without `hashlib`: that would load OpenSSL, 3 ms of import."""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # another interpreter
    from hashlib import blake2b

__all__ = ["blake2b"]
