"""`wandb.errors`: exceptions by W&B's names. Only those of bad arguments are ever raised here."""

from __future__ import annotations

from logclient.compat import stand_ins as inert
from logclient.compat.config_and_summary import ConfigError
from logclient.errors import BadArgument, LogclientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Error = LogclientError
UsageError = BadArgument


class CommError(LogclientError):
    """No server could be reached. Never raised: nothing here speaks to one."""


class AuthenticationError(CommError):
    """A key was refused. Never raised."""


class UnsupportedError(LogclientError):
    """Something is not supported. Never raised."""


inert.classes.update(
    Error=Error,
    UsageError=UsageError,
    CommError=CommError,
    AuthenticationError=AuthenticationError,
    ConfigError=ConfigError,
    UnsupportedError=UnsupportedError,
)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return inert.known(name) or inert.Inert(f"wandb.errors.{name}")
