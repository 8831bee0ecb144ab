"""`should_stop` and `should_save`: requests to stop or to save, as the agent has written them to its status page.

Runs in the training process. Reads shared memory and a clock: waits for nothing, raises nothing of its own.

Invariants:

- without a request each is a look at one word;
- a request turns true at the step that the worker chose for all ranks, compared with the newest step that this process
  (or this rank of it) has logged, or with the one that is given; where it has logged nothing, at once;
- a request that was made before this process came counts once the worker has confirmed it: it may have been meant for
  an earlier attempt.
"""

from __future__ import annotations

import time

from ..guest import foreign
from ..shm import layout, stop_requests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .recorder import Recorder

_LOOK_S = 0.005  # for the newest step, while a request waits for it


def should_stop(recorder: Recorder, step: object) -> bool:
    """Implement `Run.should_stop`."""
    try:
        words = recorder.session.status_page
        if words is None or not (word := words[layout.STOP_AT]):
            return False
        if word == recorder.stop_word and not words[layout.STOP_UNTIL]:
            return True
        if not _has_come_true(recorder, words, layout.STOP_AT, word, step):
            return False
        recorder.stop_word = word
        return True
    except RecursionError:  # too near the interpreter's limit to find anything out
        return False
    except Exception as error:
        if not foreign.is_own(error):
            raise
        return False  # released: the run is over


def should_save(recorder: Recorder, step: object) -> bool:
    """Implement `Run.should_save`."""
    try:
        words = recorder.session.status_page
        if words is None or not (word := words[layout.SAVE_AT]):
            return False
        number = words[layout.SAVE_NUMBER]
        if number in recorder.saves or not _has_come_true(recorder, words, layout.SAVE_AT, word, step):
            return False
        me = object()
        return recorder.saves.setdefault(number, me) is me
    except RecursionError:  # too near the interpreter's limit to find anything out
        return False
    except Exception as error:
        if not foreign.is_own(error):
            raise
        return False


def _has_come_true(recorder: Recorder, words: memoryview, at: int, word: int, step: object) -> bool:
    """Has this process reached the step in `word`, and not the one behind it, from which on it is withdrawn?"""
    until, lanes = words[at + 1], recorder.session.lanes
    if lanes is None or words[layout.REQUESTS_CHECKED_NS] < lanes.words[layout.FILE_CREATED_MONO_NS]:
        return False
    own = None
    if step is not None:
        own = step if step.__class__ is int else recorder.step_of(step)
    if own is None and recorder.session.mark[0]:  # else a forked child that has logged nothing
        deadline = time.monotonic() + _LOOK_S
        own = stop_requests.newest_step(lanes.mem, lanes.words, recorder.rank, deadline)
    if own is None:
        is_true = not until
    else:
        reached = stop_requests.word_of(own)
        is_true = reached >= word and (not until or reached < until)
    return is_true and words[at] == word  # else another request has come: the next call finds it
