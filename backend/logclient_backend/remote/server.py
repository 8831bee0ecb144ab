"""Questions to a collector's HTTP API.

Runs in a command or a user's program, one thread per `Server`.

Invariants:

- every wait has a limit, and so has the size of an answer;
- a question is put again, after a growing pause, only where no connection came about; never where one was answered;
- the token goes to this server alone: redirections are not followed, `.netrc` is not asked;
- loopback is never asked through a proxy; else proxies are those of the environment;
- what is no answer of a collector (a captive portal's page) is named as such; texts from elsewhere are made one line.
"""

from __future__ import annotations

import random
import time
from typing import Any

import requests
from requests.auth import AuthBase

from logclient.errors import BadArgument, NoRun

from ..runs import strict
from ..wire.sanitize import one_line
from .access import NoPath, ServerError, Unreachable, WebAccess
from .handshake import TlsAdapter

CONNECT_S, READ_S = (
    5.0,
    60.0,
)  # until a connection is there; between two pieces of an answer, or of a handshake
WHOLE_S = 600.0  # of one answer
TRIES_S = 10.0  # in which an unreachable server is tried again
MAX_BYTES = 1 << 28
MAX_FILE_BYTES = 4 << 30
_MAX_ERROR_BYTES = 1 << 16
_PIECE = 1 << 18
_API = "/api/v1"
_TYPES = ("application/json", "application/x-protobuf")


class _Bearer(AuthBase):
    """Given as `auth`, so that requests does not look into a `.netrc` for another one."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Server:
    """One collector."""

    def __init__(self, access: WebAccess) -> None:
        self.url = access.url
        self._session = requests.Session()
        self._session.auth = _Bearer(access.token)
        self._session.trust_env = not access.is_loopback
        self._session.headers["User-Agent"] = "logclient"
        # on the machine itself bytes cost less than packing them
        self._session.headers["Accept-Encoding"] = "identity" if access.is_loopback else "gzip"
        self._session.mount("https://", TlsAdapter(access.ca, READ_S))

    def close(self) -> None:
        self._session.close()

    def json(self, path: str, **parameters: Any) -> dict[str, Any]:
        """The answer to GET, an object."""
        return self._object(self.data(path, **parameters))

    def post(self, path: str, *, body: dict[str, Any] | None = None, **parameters: Any) -> dict[str, Any]:
        """The answer to POST, an object. Asked once: whoever finds no answer cannot tell whether it was done."""
        return self._object(self._data("POST", path, parameters, body))

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            found = strict.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerError(f"{self.url} answers with no JSON object: is it a collector of logclient?")
        return found

    def data(self, path: str, **parameters: Any) -> bytes:
        """The answer to GET, as it came. `NoRun` where that is the answer; `ServerError` for all other trouble."""
        return self._data("GET", path, parameters)

    def file(self, path: str, **parameters: Any) -> bytes:
        """The answer to GET, of any type: the bytes of a file. Raises as `data` does."""
        answer = self._ask("GET", _API + path, parameters, None)
        with answer:
            if answer.status_code == 200 and "X-Content-Type-Options" in answer.headers:
                return self._read(answer, MAX_FILE_BYTES)
            data = self._read(answer, _MAX_ERROR_BYTES)
        raise self._error_of(answer.status_code, data)

    def _data(
        self, method: str, path: str, parameters: dict[str, Any], body: dict[str, Any] | None = None
    ) -> bytes:
        answer = self._ask(method, _API + path, parameters, body)
        with answer:
            status = answer.status_code
            data = self._read(answer, MAX_BYTES if status == 200 else _MAX_ERROR_BYTES)
            kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if status == 200 and kind in _TYPES:
            return data
        if status == 200 or kind != "application/json":
            shown = f"status {status}" if status != 200 else f"a page of type {one_line(kind or 'none', 60)}"
            raise ServerError(
                f"{self.url} answers with {shown}: that is no collector of logclient, or a proxy in between answers"
            )
        raise self._error_of(status, data)

    def _error_of(self, status: int, data: bytes) -> Exception:
        try:
            content = strict.loads(data)
        except ValueError:
            content = None
        content = content if isinstance(content, dict) else {}
        message = one_line(str(content.get("message") or f"status {status}"))
        if content.get("error") in ("no_run", "no_key"):
            return NoRun(f"{self.url}: {message}")
        if content.get("error") == "no_numbers":
            return BadArgument(f"{self.url}: {message}")
        if content.get("error") == "no_path":
            return NoPath(f"{self.url}: {message}")
        if status == 401:
            message += " (in LOGCLIENT_TOKEN, a --token-file, or the config file)"
        return ServerError(f"{self.url}: {message}")

    def _ask(
        self, method: str, path: str, parameters: dict[str, Any], body: dict[str, Any] | None
    ) -> requests.Response:
        deadline = time.monotonic() + (TRIES_S if method == "GET" else 0.0)
        pause_s = 0.2
        while True:
            try:
                return self._session.request(
                    method,
                    self.url + path,
                    params=parameters,
                    json=body,
                    timeout=(CONNECT_S, READ_S),
                    allow_redirects=False,
                    stream=True,
                )
            except requests.exceptions.SSLError as error:
                raise ServerError(f"{self.url}: TLS fails: {with_hint(_cause(error))}") from None
            except requests.exceptions.ProxyError as error:
                raise Unreachable(
                    f"{self.url} is not reached through the proxy of the environment: {_cause(error)}"
                ) from None
            except requests.exceptions.ReadTimeout:
                raise Unreachable(
                    f"{self.url} took the question and gave no answer in {READ_S:.0f} s"
                ) from None
            except requests.exceptions.ConnectionError as error:
                if time.monotonic() + pause_s > deadline:
                    raise Unreachable(f"{self.url} is not reached: {with_hint(_cause(error))}") from None
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s *= 2
            except requests.exceptions.RequestException as error:
                raise ServerError(f"{self.url}: {_cause(error)}") from None

    def _read(self, answer: requests.Response, most: int) -> bytes:
        """At most `most` bytes, in a bounded time."""
        deadline = time.monotonic() + WHOLE_S
        parts, size = [], 0
        try:
            for part in answer.iter_content(_PIECE):
                parts.append(part)
                size += len(part)
                if size > most:
                    if answer.status_code != 200:
                        break
                    raise ServerError(f"{self.url} answers with more than {most >> 20} MiB")
                if time.monotonic() > deadline:
                    raise Unreachable(f"{self.url} has not finished its answer in {WHOLE_S:.0f} s")
        except (requests.exceptions.RequestException, OSError) as error:
            raise Unreachable(f"{self.url} broke its answer off: {_cause(error)}") from None
        return b"".join(parts)


_HINTS = {
    "certificate has expired": "the collector needs a new one",
    "certificate is not yet valid": "is the clock of one machine wrong?",
    "self-signed certificate": "set ca in the config file to the certificate that signed it",
    "unable to get local issuer": "set ca in the config file to the certificate that signed it",
    "handshake operation timed out": "if it does not speak TLS, write http:// rather than https://",
    "WRONG_VERSION_NUMBER": "if it does not speak TLS, write http:// rather than https://",
    "Remote end closed": "if it wants TLS, write https:// rather than http://",
    "Connection refused": "nothing listens there",
}


def with_hint(cause: str) -> str:
    """And what helps, where that is known."""
    found = [hint for words, hint in _HINTS.items() if words in cause]
    return f"{cause}; {found[0]}" if found else cause


def _cause(error: Exception) -> str:
    """The innermost words: what urllib3 wraps around them helps nobody, and may show a proxy's password."""
    inner: BaseException = error
    for _ in range(8):
        following = getattr(inner, "reason", None) or inner.__cause__ or inner.__context__
        if not isinstance(following, BaseException):
            break
        inner = following
    text = getattr(inner, "strerror", None) or str(inner)
    return one_line(text.rpartition("@")[2], 200) or type(inner).__name__
