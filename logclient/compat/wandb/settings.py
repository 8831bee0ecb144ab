"""`wandb.Settings`: takes everything; and which settings an `init` gets from arguments, settings and variables."""

from __future__ import annotations

from logclient.compat.config_and_summary import as_dict
from logclient.compat.stand_ins import Inert
from logclient.config import environment

from .current import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_YES = ("true", "1", "yes", "on")


class Settings:
    """Holds whatever it is given; docs/integrations/wandb.md names those that count."""

    def __init__(self, *args: Any, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def update(self, *args: Any, **given: Any) -> None:
        """Take in more of them."""
        self.__dict__.update(given)


class Chosen:
    """One `init`'s settings: an argument wins over `settings`, these over `wandb.setup`'s, these over the variables."""

    def __init__(self, settings: Any) -> None:
        self._settings = {**here.settings, **plain(settings)}

    def __call__(self, argument: Any, variable: str, setting: str = "") -> Any:
        if argument is not None and not isinstance(argument, Inert):
            return argument
        found = self._settings.get(setting)
        return found if found is not None else environment().get(variable) or None


def plain(settings: Any) -> dict[str, Any]:
    """Settings, or a dict of them, as a dict."""
    return dict(vars(settings)) if isinstance(settings, Settings) else as_dict(settings)


def is_set(variable: str) -> bool:
    """Does the environment say yes?"""
    return environment().get(variable, "").lower() in _YES
