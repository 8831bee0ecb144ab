"""Shared-memory layout of a lane file: offsets, magic, version. Numbers only.

Owns nothing and runs nowhere: the training process and the agent both read these numbers.
Every shared cell is one 8-byte little-endian word, aligned, read and written through one
``memoryview(...).cast("Q")`` and by exactly one side.

::

    byte 0      file header: what this file is, who made it, where its areas lie     (written once)
    byte 512    producer words: counters the training process publishes
    byte 768    agent words: counters the agent publishes
    byte 1024   lane headers, 256 bytes each, at most 10: what `log` takes, then those of records a device completes
    byte 3584   section table: 16 entries of 32 bytes
    byte 4096   key area      shapes, appended; KEYS_USED says how far it is valid
                documents     DOCUMENT_KINDS x 2 slots
                blocks        fixed cells for large payloads
                lanes         lane 0 first, at least 3/4 of the file

    frame (multiple of 8 bytes, never wraps; padding fills the end of a lap)
    +0   u32 length of the frame in bytes (bit 31: padding)   u32 CRC-32 of what follows
    +8   u64 seq        from 1, per lane
    +16  u64 order      from 1, per process: orders records across lanes
    +24  i64 step
    +32  i64 time       ns since 1970
    +40  u32 shape id   u32 rank + 1 (0: no rank)
    +48  payload        see record.py
"""

MAGIC = int.from_bytes(b"LCLANES1", "little")
VERSION = 1

# file header, word indexes
FILE_MAGIC = 0
FILE_VERSION = 1
FILE_BYTES = 2
FILE_LANES = 3
FILE_PID = 4
FILE_START_TICKS = 5  # field 22 of /proc/PID/stat: tells a reused PID from the same process
FILE_PID_NAMESPACE = 6  # inode of /proc/self/ns/pid, 0: nobody can tell. A PID means nothing elsewhere
FILE_PROCESS = 8  # two words: random id of this process incarnation
FILE_KEYS = 10  # byte offset, then capacity
FILE_DOCUMENTS = 12  # byte offset, then bytes of one large slot, then of one small slot
FILE_BLOCKS = 15  # byte offset, then bytes of one cell, then number of cells
FILE_CREATED_NS = 18
FILE_RANK = 19  # rank + 1; the one word of them that may change: see Session.take_rank
FILE_DEVICE_LANES = 20  # how many of the lanes, the last ones, hold records that a device completes
FILE_CREATED_MONO_NS = 21  # time.monotonic_ns at FILE_CREATED_NS; 0: an earlier build made it

# producer words
KEYS_USED = 64  # bytes of the key area that are valid
STATE = 65  # one of the STATE_ values
REFUSED = 66  # records that got no seq
LEFT_OUT = 67  # points left out of accepted records
DOCUMENTS_WRITTEN = 68  # grows by 1 per written document
FLUSH_ASKED = 69  # grows by 1 per flush
DROPPED = (
    70  # PID of the process in which the last handle of the run went without `finish`; a child's says nothing
)
PHASE_UNTIL = 71  # a declared phase (time.monotonic_ns); 0: none. Stored last
PHASE_SINCE = 72
PHASE_RECORDS = 73  # records accepted when it was declared, times 2; bit 0: further ones do not end it
PHASE_NAME = 74  # UTF-8, zeros behind it
PHASE_NAME_WORDS = 4
PHASE_WORDS = 3 + PHASE_NAME_WORDS
SECTION = 78  # number of the current section; 0: outside of all
SECTION_SINCE = 79  # since when (time.monotonic_ns), stored before SECTION; 0: no section was used yet
SECTION_OTHER_NS = 80  # time in sections that have no entry of their own
PTRACER = 81  # PID that was given the right to read this process's stacks (Yama); PTRACER_ANY: all; 0: none
PTRACER_ANY = (1 << 64) - 1

# agent words
DOCUMENTS_DURABLE = 96  # the DOCUMENTS_WRITTEN that is on disk
FLUSH_DONE = 97  # the FLUSH_ASKED that is on disk
SWEPT = 98  # 1: everything is stored, and the file is about to be removed
FOLDER_LEFT = 99  # 1: swept, and nothing more is written to the run folder but what others want there
CONSOLE_STORED = 100  # bytes that the pieces of a console lane file took in segments

STATE_OPEN = 0
STATE_FINISHED = 1  # the process gave up its lanes; nothing more will come

# lane header, word indexes relative to it; a cache line for each side
LANE_HEADERS = 128
LANE_HEADER_WORDS = 32
MAX_LANES = 10  # 8 and two of a device
TAIL = 0  # producer: position behind the last committed frame
SEQ = 1  # producer: seq of that frame = records accepted
FORGOT = 2  # producer: frames below this position may be overwritten at any moment
RELEASED = 8  # agent: frames below this position are staged or stored and may be overwritten
STAGED_SEQ = 9  # agent: records up to this seq were taken or counted as dropped
ACKED_SEQ = 10  # agent: committed at the collector
# agent: three counts that belong together, twice; one store to COUNTS_SLOT makes the other set the valid one
COUNTS_SLOT = 11
COUNTS = 12  # durable seq (past an fsync in the run folder), stored, damaged; then the same again
COUNTS_WORDS = 3
LANE_OFFSET = 24  # constants: byte offset of the ring, then its size
LANE_BYTES = 25
LANE_STREAM = 26  # two words: random id of the stream

# section table, behind the lane headers; entry N - 1 is the section with number N
SECTION_TABLE = 448
MAX_SECTIONS = 16
SECTION_NS = 0  # accumulated time, without what has gone on since SECTION_SINCE
SECTION_NAME = 1  # UTF-8, zeros behind it; the first word is stored last, and 0 is a free entry
SECTION_NAME_WORDS = 3
SECTION_WORDS = 1 + SECTION_NAME_WORDS
SECTION_OTHER = MAX_SECTIONS + 1  # number of the section that the others share

KEYS_OFFSET = 4096

# document slots: two per kind; word 0 version, word 1 length | crc << 32, then bytes
DOCUMENT_KINDS = ("config", "summary", "start", "about", "state", "notices")
LARGE_KINDS = 2  # the first two kinds get large slots
DOCUMENT_HEADER = 16

# block cells: word 0 taken, word 1 freed, both counted up; free when equal
BLOCK_HEADER = 16

# device cells: a file of their own beside the lane file, `<process>.device`, drawn in `cells.py`
CELLS_MAGIC = int.from_bytes(b"LCCELLS2", "little")
CELLS_BYTES = 1  # word: bytes of the file
CELLS_CLASSES = 2  # words: for each class of cells, byte offset, bytes of one cell, number of cells
CELL_CLASSES = 4
CELL_HEADER = 24  # words: taken, freed; then u32 number of values, u32 where in the cell they start

# frames
FRAME_HEADER = 8  # length and CRC
BODY_HEADER = 40  # seq, order, step, time, head
FRAME_PREFIX = FRAME_HEADER + BODY_HEADER
LENGTH_MASK = 0x7FFF_FFFF
PADDING = 0x8000_0000
SHAPE_MASK = 0xFFFF_FFFF
RANK_SHIFT = 32
MAX_RANKS = 1 << 30  # ranks are below that
INLINE_SHAPE = 0  # the frame describes itself
BLOCK_SHAPE = SHAPE_MASK  # the payload lies in a block
DEVICE_SHAPE = SHAPE_MASK - 1  # a device writes some of the values into a cell; see `cells.py`

# the agent's status page, word indexes; one page, made by the first process of a run on a node
STATUS_BYTES = 4096
AGENT_SUPERVISOR = 0  # PID
AGENT_WORKER = 1  # PID
AGENT_SUPERVISOR_BEAT = 2  # time.monotonic_ns
AGENT_WORKER_BEAT = 3
AGENT_CLOSING = 4  # one of the CLOSING_ values; 0: it stays
AGENT_RESTARTS = 5  # worker restarts
AGENT_GAVE_UP = 6  # 1: too many deaths without progress
AGENT_DRAINED = 7  # progress per duty, only ever grow: bytes staged,
AGENT_WRITTEN = 8  # bytes past an fsync in the run folder,
AGENT_SHIPPED = 9  # records acked
AGENT_WRITE_PENDING = 10  # bytes staged and not yet past an fsync
AGENT_WRITE_STALLED_NS = 11  # since when the disk does not answer; 0: it does
AGENT_SPILL_BYTES = 12  # tmpfs taken by staged segments
AGENT_WRITE_ERROR = 13  # errno of the last failed write; 0: none since the last success
AGENT_WORKER_TICKS = 14  # when that PID started (as FILE_START_TICKS); 0: about to change
# what the worker staged for good: its id, then number << STAGE_END_BITS | end of its current segment. A successor cuts
# off what lies beyond, so that the records of one look at a lane are staged all or not at all
AGENT_STAGE_WRITER = 16
AGENT_STAGE_COMMIT = 17
STAGE_END_BITS = 40
# the process that ships to a collector; only with a server
AGENT_SHIPPER = 18  # PID
AGENT_SHIPPER_TICKS = 19  # as AGENT_WORKER_TICKS
AGENT_SHIP_BEAT = 20  # time.monotonic_ns
AGENT_SHIP_STATE = 21  # index into SHIP_STATES
AGENT_SHIP_WRITTEN = 22  # grows by 1 with each new list of what is acked
AGENT_SHIP_MOVED_NS = 23  # time.monotonic_ns at which anything was acked last
AGENT_SHIP_RESTARTS = 24
AGENT_SHIP_STOP = 25  # 1: it shall leave
AGENT_PID_NAMESPACE = 26  # as FILE_PID_NAMESPACE: of the PIDs above; 0: none are there, or nobody can tell
AGENT_SHIP_REFUSED = 27  # records that the collector will never take, as this process that ships knows
AGENT_CALLED_NS = 28  # time.monotonic_ns at which an agent was called for: it starts until its worker beats
AGENT_REVISION = (
    29  # of the documents of this node that were made last: only grows, also over dead workers and agents
)
# requests to stop or to save: steps as `stop_requests.word_of` gives them. By the worker, but the last three
STOP_AT = 30  # from that step on `should_stop` is true; 0: nobody asks for it. Stored last
STOP_UNTIL = 31  # below that step alone: the request was withdrawn; 0: it was not
SAVE_AT = 32  # the same for `should_save`
SAVE_UNTIL = 33
SAVE_NUMBER = 34  # of the request to save: true once for each
REQUESTS_CHECKED_NS = 35  # time.monotonic_ns: they are for processes that came before
STOP_FILE_BEAT = (
    36  # time.monotonic_ns of the last look at the stop file; 0: none yet. By the process that reads it
)
STOP_FILE_SEEN = 37  # digest of the stop file that it reported last
STOP_FILE_FLAGS = 38  # 1: it was looked for; 2: the name of its owner is being asked for
# the process that observes the run's processes
AGENT_OBSERVER = 40  # PID
AGENT_OBSERVER_TICKS = 41  # as AGENT_WORKER_TICKS
AGENT_OBSERVER_BEAT = 42  # time.monotonic_ns
AGENT_OBSERVED = 43  # index into OBSERVED_STATES
AGENT_OBSERVER_WRITTEN = 44  # grows by 1 with each new why.json that says something else
AGENT_OBSERVER_RESTARTS = 45
AGENT_OBSERVER_STOP = 46
OBSERVER_SHALL_LEAVE = 1
OBSERVER_HAS_LET_GO = 2  # of the directory; it sends its last alerts
# what the program runs in: see `agent/supervise/capture.py`
AGENT_CAPTURE_ASKED = 48  # grows by 1 with each question of the worker
AGENT_CAPTURE_WRITTEN = 49  # the question that environment.json answers
AGENT_RUN_DISK = 47  # bytes of the sealed segments in the run folder, when they were counted last
# the process that stores images and other media values; only where some are logged
AGENT_MEDIA = 50  # PID
AGENT_MEDIA_TICKS = 51  # as AGENT_WORKER_TICKS
AGENT_MEDIA_BEAT = 52  # time.monotonic_ns
AGENT_MEDIA_STOP = 53  # 1: it shall leave
AGENT_MEDIA_RESTARTS = 54
AGENT_MEDIA_STORED = 56  # values that got a reference; only grows
AGENT_BLOBS_SEEN = 57  # by the ship process: AGENT_MEDIA_STORED when it looked for blobs last
AGENT_BLOBS_WAITING = 58  # so many of those are not at the collector
AGENT_MEDIA_ERROR = 55  # errno of the last failed write; 0: none since the last success
OBSERVED_STATES = ("off", "ok", "quiet", "stalled")  # off: nobody has looked yet, or nobody is asked to
# all producers gone, about to remove the directory: who is in by then is served all the same
CLOSING_STORED = 1
CLOSING_KEPT = 2  # the same, but what is there stays: who comes now calls for another agent
SHIP_OFF, SHIP_LOOKING, SHIP_STARTING = 0, 1, 2  # looking: is there a server?
SHIP_STATES = (
    *("off", "looking", "starting", "connecting", "shipping", "idle"),
    *("waiting", "refused"),  # for the next try; said so by the collector, for good
)
# texts about shipping, in the same page: two slots as documents have them (version, length | crc << 32, then bytes);
# address, error, reason of refusal and address of the page, one line each
SHIP_TEXTS = 1024
SHIP_TEXT_BYTES = 1536


def lane_header(index: int) -> int:
    """Return the word of the file at which the header of lane `index` begins."""
    return LANE_HEADERS + index * LANE_HEADER_WORDS
