"""Secrets in command lines, variables and addresses, replaced by `***` before anything is stored. Pure.

Invariants:

- the value of a name that sounds like a secret (`SECRET`) is never kept, whatever it looks like;
- a text that has the form of a known token is masked wherever it stands;
- an address keeps its host and path, never a user's password.

Does not: find a secret that has an ordinary name and an ordinary form. Whoever passes one on a command line shows it
to every user of the host already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MASK = "***"
_WORDS = "KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|JWT|PRIVATE|SIGNATURE|BEARER|WEBHOOK"
SECRET = re.compile(_WORDS, re.IGNORECASE)

_NAME = r"[\w.\-+/\[\]\"']*"
# name=value, name: value, "name": "value", inside one argument or line
_PAIR = re.compile(
    rf"({_NAME}(?:{_WORDS}){_NAME}\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"'}}\]]+)", re.IGNORECASE
)
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^/\s@]*@")
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE)
_FORMS = re.compile(
    r"\b(?:"
    r"lct_[A-Za-z0-9_\-]{20,}"  # ours
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_\-]{16,}"
    r"|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_\-]{16,}|xox[abeprs]-[A-Za-z0-9\-]{10,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_\-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_\-]{30,}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
    r")"
)
_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_OPTION = re.compile(r"--?[A-Za-z][\w.\-]*")


def is_secret(name: str) -> bool:
    """Does a variable, option or setting of this name hold a secret, by its name?"""
    return SECRET.search(name) is not None


def text(value: str) -> str:
    """Return a text without what looks like a secret in it."""
    value = _BLOCK.sub(MASK, value)
    value = _USER.sub(rf"\1{MASK}@", value)
    value = _BEARER.sub(rf"\1 {MASK}", value)
    value = _PAIR.sub(rf"\1{MASK}", value)
    return _FORMS.sub(MASK, value)


def arguments(words: Iterable[str]) -> list[str]:
    """Return a command line without secrets: of an option that sounds like one, the value is masked, too."""
    made: list[str] = []
    hides_next = False
    for word in words:
        if hides_next and not word.startswith("--"):
            made.append(MASK)
            hides_next = False
            continue
        hides_next = _OPTION.fullmatch(word) is not None and is_secret(word)
        made.append(text(word))
    return made


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return variables without secrets."""
    return {name: MASK if is_secret(name) else text(value) for name, value in given.items()}


def address(url: str) -> str:
    """Return the address of a repository without user and password; `git@host:path` has no password."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return text(url)
    host, slash, path = rest.partition("/")
    return text(f"{scheme}://{host.rpartition('@')[2]}{slash}{path}")
