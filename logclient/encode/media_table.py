"""Images in the cells of a table: its JSON and all raw images as one payload.

Runs in the training process, inside `log()`. ::

    +0    u64 bytes of the list     u64 bytes of the table
    +16   list, JSON: one object per image, its description with `bytes`; or `lost`, why it is left out
          table, JSON: a cell {"image": 3} stands for the image 3 of the list
          raw images, one after the other

Invariants:

- an image that does not fit, or cannot be read, is left out and counted; the table and the other images stay;
- raw bytes are copied twice, here and into shared memory: a payload is one piece.
"""

from __future__ import annotations

from ..guest import foreign, stdlib
from ..shm.media_ring import TABLE_SIZES
from .values import LeftOut, NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .media_values import Value

MAX_IMAGES = 1000  # of a table, each one a file where it is stored; the list ends with them
_LOST_BYTES = 200  # of an image that is left out, in the list


def joined(table: bytes, images: Sequence[Value], most_bytes: int) -> tuple[bytes, int, int]:
    """Return the payload, how many images are left out of it, and how many of these cannot be read.

    Raises NoRoom where not even the table fits.
    """
    dumps = stdlib.load("json").dumps
    taken = images[:MAX_IMAGES]
    left = most_bytes - TABLE_SIZES.size - len(table) - _LOST_BYTES * len(taken)
    if left < 0:
        raise NoRoom(f"{len(table):,} bytes; at most {most_bytes:,} fit (LOGCLIENT_MEDIA_BYTES)")
    listed: list[str] = []
    unread = 0
    raw: list[bytes | memoryview] = []
    for image in taken:
        why = ""
        try:
            described, payload = image.packed(left)
            described["bytes"] = len(payload)
            about = dumps(described, separators=(",", ":"), default=str)
            size = len(about) + len(payload)
            if "json" in described:
                raise LeftOut("a figure of plotly is no image")
            if size > left:
                raise NoRoom("no room is left")
        except LeftOut as reason:
            why = str(reason)
            unread += not isinstance(reason, NoRoom)
        except Exception as error:
            if foreign.is_users(error):
                raise
            why = f"it could not be read ({type(error).__name__})"
            unread += 1
        if why:
            listed.append(dumps({"lost": why.encode("ascii", "replace").decode()[: _LOST_BYTES - 20]}))
            continue
        listed.append(about)
        raw.append(payload)
        left -= size
    head = f"[{','.join(listed)}]".encode()
    return (
        b"".join((TABLE_SIZES.pack(len(head), len(table)), head, table, *raw)),
        len(images) - len(raw),
        unread,
    )
