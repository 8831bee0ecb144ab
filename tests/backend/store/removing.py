"""A process that deletes a large run for good while another run is written, in little memory; may be killed any time.

`python -m tests.backend.store.removing FOLDER FIRST MIB`: run `live` is written from seq FIRST on, what is acknowledged
is told line by line on standard output, and all that lies in the bin is purged. When all of it is gone and the space
has come back, one line of JSON tells it. Run by `test_scale.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

from logclient_backend.collector.store.embedded import open_store

from .samples import parcel, ramp

RECORDS = 100


def main(folder: str, first: int, mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (mib << 20, mib << 20))
    store = open_store(folder)
    is_done = threading.Event()
    waits: list[float] = []

    def write() -> None:
        for number in itertools.count(first, RECORDS):
            batch = parcel(ramp(number, RECORDS), run="live")
            begin = time.monotonic()
            store.writer.write([batch])
            waits.append(time.monotonic() - begin)
            os.write(1, b"%d\n" % (number + RECORDS - 1))
            if is_done.wait(0.01):
                return

    writer = threading.Thread(target=write)
    writer.start()
    store.writer.purge(0)
    while store.compact(deadline_s=0.5):
        pass
    is_done.set()
    writer.join()
    while store.compact(deadline_s=60, now=True):
        pass
    # not ru_maxrss: that begins with the memory of the process that started this one
    peak_mib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    print(json.dumps({"peak_mib": peak_mib, "writes": len(waits), "longest_s": max(waits)}), flush=True)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
