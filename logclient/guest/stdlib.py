"""Modules of the standard library that the client loads late, whatever lies beside the user's script.

Runs in the training process, at `init`. The folder of a script comes first on its `sys.path`: a plain `import json`
finds a `json.py` of the user's there. Where that is so, ours is loaded from where it belongs, and the user's stays
what others get.

Invariant: a module is given out when it is whole. Python's own import is asked for it, which waits for a thread that
is only just importing it; where a user's module is passed by, one thread at a time does so.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec  # `importlib` itself may be the user's
from _frozen_importlib_external import PathFinder
from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_FOLDER = os.path.dirname(getattr(os, "__file__", ""))  # a frozen program may have none
_loaded: dict[str, Any] = {}
_locks: dict[int, Any] = {}  # by process: a forked child must not wait for a thread of its parent's
_WAIT_S = 10.0


def load(name: str) -> Any:
    """The standard library's module of that name (no dots in it)."""
    try:
        return _loaded[name]
    except KeyError:
        pass
    lock = _locks.setdefault(os.getpid(), RLock())
    is_held = lock.acquire(timeout=_WAIT_S)
    try:
        found = _loaded[name] = _loaded.get(name) or _find(name)
    finally:
        if is_held:
            lock.release()
    return found


def _find(name: str) -> ModuleType:
    present = sys.modules.get(name)
    if present is not None and _is_standard(name, getattr(present, "__spec__", None)):
        return __import__(name)  # perhaps another thread has only begun with it
    if present is None and _is_standard(name, _spec_of(name)):
        return __import__(name)
    spec = PathFinder.find_spec(name, [_FOLDER])
    if spec is None or spec.loader is None:  # a frozen or zipped library: take what there is
        return __import__(name)
    theirs = _take_out(name)
    try:
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        _take_out(name)
        sys.modules.update(theirs)
    return module


def _spec_of(name: str) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, None) if find is not None else None
        if spec is not None:
            return spec
    return None


def _is_standard(name: str, spec: Any) -> bool:
    candidates = (f"{name}.py", os.path.join(name, "__init__.py"))
    return getattr(spec, "origin", "") in (
        "built-in",
        "frozen",
        *(os.path.join(_FOLDER, candidate) for candidate in candidates),
    )


def _take_out(name: str) -> dict[str, ModuleType]:
    return {
        key: sys.modules.pop(key) for key in list(sys.modules) if key == name or key.startswith(f"{name}.")
    }


def folder_of(package: str) -> str:
    """The folder in which a package lies; empty where it is none that can be found. Loads nothing."""
    module = sys.modules.get(package)
    spec = module.__spec__ if module is not None else _spec_of(package)
    locations = list(getattr(spec, "submodule_search_locations", None) or ())
    try:
        return os.path.dirname(os.path.abspath(locations[0])) if locations else ""
    except FileNotFoundError:  # found by way of a working directory that is gone
        return ""
