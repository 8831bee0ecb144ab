"""Phases of shipping one node to one collector, and what ends each of them.

::

    phase        what holds                                   next
    NEW          no collector has answered yet                welcome: STREAMING, or CATCHING_UP where it shall end
                                                              once all is there (`until_done`)
    STREAMING    what comes is sent as it comes, for as       welcome of another collector: STREAMING from the start
                 long as that is wanted
    CATCHING_UP  what lay here at the welcome is read and     all read, and the node goes on being written: DRAINING
                 sent                                         all acknowledged, losses told, the node is over: DONE
                                                              welcome of another collector: CATCHING_UP anew
    DRAINING     nothing more is read: a node may be written  all acknowledged: DONE
                 faster than it is sent                       welcome of another collector, or the node is over
                                                              meanwhile: CATCHING_UP
    DONE         all that lay here is there                   -
    REFUSED      the collector will take nothing of this      -
                 node, whenever it is asked

A final refusal leads from each of the first four to REFUSED. A conversation that breaks, rests or begins again with the
same collector changes nothing here: how the conversation is, says `Progress.state`.
"""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """The part of the work that is left."""

    NEW = enum.auto()
    STREAMING = enum.auto()
    CATCHING_UP = enum.auto()
    DRAINING = enum.auto()
    DONE = enum.auto()
    REFUSED = enum.auto()


NEXT = {
    Phase.NEW: {Phase.STREAMING, Phase.CATCHING_UP, Phase.REFUSED},
    Phase.STREAMING: {Phase.STREAMING, Phase.REFUSED},
    Phase.CATCHING_UP: {Phase.CATCHING_UP, Phase.DRAINING, Phase.DONE, Phase.REFUSED},
    Phase.DRAINING: {Phase.CATCHING_UP, Phase.DONE, Phase.REFUSED},
    Phase.DONE: set(),
    Phase.REFUSED: set(),
}
