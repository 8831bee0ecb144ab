"""A process that writes to a store as a collector does, to be killed; run by `test_killed.py`.

Each commit adds to every stream; behind it the highest seq that is acknowledged is written to standard output.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading

from logclient_backend.collector.store.embedded import EmbeddedStore, compact

from .samples import parcel, ramp

STREAMS = [bytes([number]) * 16 for number in (1, 2, 3)]
RECORDS = 20


def main(folder: str, first: int, synchronous: str) -> None:
    compact.MERGED = 2  # much goes on in a short life
    store = EmbeddedStore(folder, synchronous=synchronous)

    def upkeep() -> None:
        while True:
            store.compact(deadline_s=0.2, now=True)

    threading.Thread(target=upkeep, daemon=True).start()
    choose = random.Random(first)
    for number in itertools.count(first, RECORDS):
        parcels = [
            parcel(ramp(number, RECORDS, stream=stream), node=stream.hex(), documents=b"%d" % number)
            for stream in STREAMS
        ]
        store.writer.write(parcels)
        os.write(1, b"%d\n" % (number + RECORDS - 1))
        if choose.random() < 0.05:  # some of another run, deleted at once: the purge is killed too
            store.writer.write([parcel(ramp(1, 50), run=f"gone-{number}")])
            store.writer.delete(f"gone-{number}", 1)
            store.writer.purge(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
