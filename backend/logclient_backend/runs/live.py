"""Shm directories on this host: which processes live, how the agent is, what is not yet on disk.

Runs in any process of the same user. Only looks: locks are asked about and never taken, lane files are mapped for
reading.

Does not: read the run folder, or start anything.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from dataclasses import dataclass, field
from typing import Any

from logclient.config import Config
from logclient.shm import cells, lane_file, layout, refusals
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.counters import lane_counts, missing_there
from logclient.shm.documents import read_document
from logclient.shm.health import describe_agent, describe_server
from logclient.shm.owner import is_alive, is_locked
from logclient.shm.regular import open_regular, read_object, read_regular
from logclient.shm.ring import RingReader, read_counts
from logclient.shm.shm_dir import ShmDir
from logclient.shm.side_stream import side_of
from logclient.spawn.agent import map_status

from . import sections
from .observed import Observation, observation_of
from .sections import Sections

_SUFFIX = ".lanes"
_MAX_BYTES = 1 << 30
_MAX_TEXT = 200  # of an exception
_LOOKS = 5  # at an agent whose workers follow each other


@dataclass(frozen=True, slots=True)
class DeclaredPhase:
    """A phase that a program declared with `Run.progress`; it goes on."""

    what: str
    since_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A process that has ended, and how; its lanes may be swept by now."""

    pid: int
    rank: int | None
    end_ns: int
    text: str


@dataclass(slots=True)
class Waiting:
    """Records that are not yet durable: for the agent and the disk, and for values of a device that may still come.

    With the time of the oldest, as far as memory still holds it.
    """

    records: int = 0
    oldest_ns: int | None = None
    device_records: int = 0
    device_oldest_ns: int | None = None


class LiveLanes:
    """The lane file of one process incarnation, mapped for reading; stays readable after it was removed."""

    def __init__(self, folder: str, name: str) -> None:
        """`ValueError` or `OSError` where it is none of ours."""
        path = os.path.join(folder, name)
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            if not layout.KEYS_OFFSET < size <= _MAX_BYTES:
                raise ValueError(f"{name}: {size} bytes is no size of a lane file")
            self.mem = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self.words = words = self.mem.cast("Q")
        if words[layout.FILE_MAGIC] != layout.MAGIC or words[layout.FILE_VERSION] != layout.VERSION:
            raise ValueError(f"{name} is no lane file of version {layout.VERSION}")
        if words[layout.FILE_BYTES] != size or not 1 <= words[layout.FILE_LANES] <= layout.MAX_LANES:
            raise ValueError(f"{name}: the header contradicts the file")
        self.id = name[: -len(_SUFFIX)]
        self.pid: int = words[layout.FILE_PID]
        self.rank: int | None = words[layout.FILE_RANK] - 1 if words[layout.FILE_RANK] else None
        self.created_ns: int = words[layout.FILE_CREATED_NS]
        self._live = path[: -len(_SUFFIX)] + ".live"
        self._cells = path[: -len(_SUFFIX)] + ".device"

    @property
    def is_open(self) -> bool:
        """Has its process the run open? Its lock may be gone without it: a daemon closes all descriptors."""
        return self.is_alive and not self.has_finished

    @property
    def is_alive(self) -> bool:
        """Does the process have the run open, or live on after it gave up its lanes?"""
        words = self.words
        ticks, namespace = words[layout.FILE_START_TICKS], words[layout.FILE_PID_NAMESPACE]
        # after `finish` the file is no longer mapped
        return is_alive(self._live, self.pid, ticks, namespace, "" if self.has_finished else self.id)

    @property
    def has_finished(self) -> bool:
        """It gave up its lanes by itself, or no handle leads to the run any more in its process."""
        return bool(
            self.words[layout.STATE] == layout.STATE_FINISHED or self.words[layout.DROPPED] == self.pid
        )

    @property
    def has_durable_documents(self) -> bool:
        """Config, summary, state and the like are on disk as they were written last."""
        return bool(self.words[layout.DOCUMENTS_DURABLE] >= self.words[layout.DOCUMENTS_WRITTEN])

    def counts(self) -> dict[str, int]:
        """Over all lanes; `waiting` is what is accepted and not yet durable."""
        counts = lane_counts(self.words)
        counts["waiting"] = max(0, counts["accepted"] - counts["durable"])
        counts["refused"] = self.words[layout.REFUSED]
        counts["left_out"] = self.words[layout.LEFT_OUT]
        return counts

    def streams(self) -> dict[str, int]:
        """Records accepted by stream id, of lanes that were used."""
        found = {}
        for lane in lane_file.headers(self.words):
            if lane[layout.SEQ]:
                found[lane_file.stream_id(lane).hex()] = lane[layout.SEQ]
        return found

    def fill(self) -> float:
        """Use of the fullest lane by records that the agent has not taken, 0 to 1."""
        fullest = 0.0
        for lane in lane_file.headers(self.words):
            held = lane[layout.TAIL] - max(lane[layout.RELEASED], lane[layout.FORGOT])
            fullest = max(fullest, held / max(1, lane[layout.LANE_BYTES]))
        return min(1.0, fullest)

    def phase(self, now_ns: int) -> DeclaredPhase | None:
        """The declared phase of this process; None where it has none, or is past it. `now_ns`: `time.monotonic_ns`."""
        words = self.words
        until, since, records = words[layout.PHASE_UNTIL : layout.PHASE_UNTIL + 3]
        if until <= now_ns:
            return None
        accepted = sum(lane[layout.SEQ] for lane in lane_file.headers(words))
        if not records & 1 and accepted > records >> 1:
            return None
        name = words[layout.PHASE_NAME : layout.PHASE_NAME + layout.PHASE_NAME_WORDS].tobytes()
        what = name.rstrip(b"\0").decode("utf-8", "replace")
        return DeclaredPhase(what, max(0, now_ns - since) / 1e9, (until - now_ns) / 1e9)

    def sections(self, now_ns: int) -> Sections | None:
        """The sections of this process; None where it used none. `now_ns`: `time.monotonic_ns`."""
        return sections.read(self.words, now_ns)

    def load(self, payload: bytes) -> Any:
        """Return the data of a document (`read_document`), which may lie in a file beside; None where it is gone."""
        try:
            content = json.loads(payload)
            if "file" in content:
                name = str(content["file"])
                if os.path.basename(name) != name or not name.startswith(self.id):
                    return None
                content = json.loads(read_regular(os.path.join(os.path.dirname(self._live), name)))
            return content["data"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def waiting(self) -> Waiting:
        """Records that are accepted and not yet durable, and why."""
        found = Waiting()
        first = self.words[layout.FILE_LANES] - self.words[layout.FILE_DEVICE_LANES]
        for index, lane in enumerate(lane_file.headers(self.words)):
            records = max(0, lane[layout.SEQ] - read_counts(lane)[0])
            frame = self._oldest(index, lane) if records else None
            time_ns = None
            if frame is not None:
                time_ns = int.from_bytes(frame[32:40], "little", signed=True)
            if frame is not None and index >= first and self._is_awaited(frame):
                found.device_records += records
                found.device_oldest_ns = _earliest(found.device_oldest_ns, time_ns)
            else:
                found.records += records
                found.oldest_ns = _earliest(found.oldest_ns, time_ns)
        return found

    def _is_awaited(self, frame: bytes) -> bool:
        """May the device still bring values of this record?"""
        if not self.is_alive:
            return False
        try:
            with (
                open(open_regular(self._cells), "rb") as file,
                mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mem,
                memoryview(mem) as seen,
            ):
                return cells.is_awaited(seen, frame[layout.FRAME_PREFIX :])
        except (OSError, ValueError):
            return False

    def _oldest(self, index: int, lane: memoryview) -> bytes | None:
        """The oldest frame that is not yet durable, or the oldest later one that memory still holds."""
        durable = read_counts(lane)[0]
        if lane[layout.SEQ] <= durable:
            return None
        try:
            reader = RingReader(self.mem, layout.lane_header(index))
        except ValueError:
            return None
        reader.position = lane[layout.FORGOT]  # what was released is still there until it is overwritten
        for _ in range(64):
            taken = reader.take()
            if taken is None:
                return None
            if taken.frames and taken.last_seq > durable:
                for at, size, _ in taken.frames:
                    if int.from_bytes(taken.data[at + 8 : at + 16], "little") > durable:
                        return taken.data[at : at + size]
        return None


def _state_of(process: Any) -> list[str]:
    """Return the end of the run in a process of the ledger, as that wrote it down; empty where it did not."""
    try:
        data = process["documents"]["state"]["data"]
        exception = data.get("exception")
        if exception is None:
            return [str(data["state"])]
        return [f"{exception['type']}: {str(exception['text'])[:_MAX_TEXT]}"]
    except (LookupError, TypeError, AttributeError):
        return []


def _earliest(one: int | None, other: int | None) -> int | None:
    return min((time_ns for time_ns in (one, other) if time_ns is not None), default=None)


@dataclass(slots=True)
class LiveShmDir:
    """One run on this host that has processes, an agent, or something left to store."""

    shm_dir: ShmDir
    folder: tuple[int, int]  # device and inode: another one may be made at its path
    processes: list[LiveLanes] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)  # lane files that cannot be read, and why

    @property
    def node(self) -> str:
        return str(self.shm_dir.facts.get("node") or "")

    @property
    def run_id(self) -> str:
        return str(self.shm_dir.facts.get("run_id") or "")

    @property
    def name(self) -> str:
        return str(self.shm_dir.facts.get("name") or self.run_id)

    @property
    def dir(self) -> str:
        """The folder on disk that the run's data goes to; empty: nowhere yet."""
        answer = self.shm_dir.folder_answer()
        if answer.get("state") == "none":
            return ""
        return str(answer.get("dir") or self.shm_dir.facts.get("dir") or "")

    @property
    def network(self) -> str:
        """The type of the network file system that it is on; empty: it is on none, or that is not known yet."""
        return str(self.shm_dir.folder_answer().get("network") or "")

    @property
    def node_folder(self) -> str:
        """The folder of this node in the run folder; empty: nowhere yet."""
        base = self.dir
        return os.path.join(base, shm_dirs.folder_name(self.run_id), self.node) if base else ""

    @property
    def is_there(self) -> bool:
        """Still? An agent that has stored all removes it, whatever we have read of it by then."""
        return _identity(self.shm_dir.path) == self.folder

    @property
    def has_agent(self) -> bool:
        """Does a supervisor serve this directory, or a worker that is about to fork one, since the last one died?"""
        lock = self.shm_dir.file("agent.lock")
        words = map_status(self.shm_dir) or memoryview(bytes(layout.STATUS_BYTES)).cast("Q")
        for _ in range(_LOOKS):
            worker = words[layout.AGENT_WORKER]
            ticks, namespace = words[layout.AGENT_WORKER_TICKS], words[layout.AGENT_PID_NAMESPACE]
            if is_alive(lock, worker, ticks, namespace) or is_locked(lock):
                return True  # asked again: a worker that ends now may have left a supervisor behind
            if worker == words[layout.AGENT_WORKER]:
                return False
        return True

    def agent(self) -> dict[str, Any]:
        """Health of the agent, as `Run.status()` has it, and by the processes that there are.

        State `left`: all was stored, and the directory is removed. `gone`: nobody serves it, and none is starting.
        A supervisor that lives and is silent is `stalled`; a silent worker without one is as good as gone.
        """
        page = map_status(self.shm_dir)
        found: dict[str, Any] = {**describe_agent(page, time.monotonic_ns(), self._stall_s)}
        if found["state"] == "running":
            found["state"] = "running" if self.has_agent else "gone"
        elif found["state"] in ("stalled", "gone"):
            found["state"] = "stalled" if is_locked(self.shm_dir.file("agent.lock")) else "gone"
        if not self.is_there:  # asked last: whoever leaves takes all else away with it
            found["state"] = "left"
        return found

    def server(self) -> dict[str, Any]:
        """Progress of shipping, as `Run.status()` has it, for all processes of this node."""
        missing = sum(missing_there(process.counts()) for process in self.processes)
        live = {process.id for process in self.processes}
        try:
            for told in self._ledger()["streams"].values():
                if told["process"] not in live and not side_of(told["process"]):
                    missing += max(0, told["stored"] - told.get("acked", 0))
        except (LookupError, TypeError, AttributeError):
            pass  # no agent has written one
        wanted, status = str(self.shm_dir.facts.get("server") or ""), map_status(self.shm_dir)
        return {**describe_server(status, wanted, missing, time.monotonic_ns(), self._stall_s)}

    def ptracer(self, process: LiveLanes) -> str:
        """Return why the agent may not read the stacks of a process that allowed it to another one, under Yama."""
        allowed = process.words[layout.PTRACER]
        page = map_status(self.shm_dir)
        supervisor = 0 if page is None else page[layout.AGENT_SUPERVISOR]
        if allowed in (0, layout.PTRACER_ANY) or not supervisor or allowed == supervisor:
            return ""
        return (
            f"process {process.pid} let the agent with PID {allowed} read its stack (kernel.yama.ptrace_scope is 1), "
            f"and the agent with PID {supervisor} took over: start the run with LOGCLIENT_PTRACE=any"
        )

    def ended(self) -> list[EndedProcess]:
        """Processes of this start of the run that ended, as the agent saw it.

        Processes without a rank that finished the run, or ended with exit code 0, are left out: they did what they
        were forked for.
        """
        begun_ns = min((process.created_ns for process in self.processes if process.is_open), default=0)
        ranks = {process.rank for process in self.processes if process.is_open}
        found = []
        for each in self._ledger_processes().values():
            try:
                end, rank, pid = each.get("end") or {}, each["rank"], int(each["pid"])
                said = _state_of(each)
                is_seen = bool(end) and not (end["alive"] or end.get("replaced") or end.get("dropped"))
                is_child = rank is None and (end.get("exit_code") == 0 or bool(said))
                if is_seen and end["time"] > begun_ns and rank not in ranks and not is_child:
                    how = list(said)
                    if "signal" in end:
                        how.append(f"signal {end['signal_name']}")
                    elif end.get("exit_code") is not None:
                        how.append(f"exit code {end['exit_code']}")
                    text = f"has ended ({', '.join(how)})" if how else "has ended, nobody saw how"
                    found.append(EndedProcess(pid, rank, int(end["time"]), text))
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # of another version
        return found

    def ends(self) -> dict[str, str]:
        """Return the end of the run in processes that wrote it down, by process id: *finished*, or an exception."""
        return {key: said[0] for key, each in self._ledger_processes().items() if (said := _state_of(each))}

    @property
    def world_size(self) -> int | None:
        """The number of ranks on all nodes, as the launcher said; None where it said nothing."""
        for each in self._ledger_processes().values():
            try:
                size = each["documents"]["start"]["data"]["launch"]["world_size"]
            except (LookupError, TypeError):
                continue
            if type(size) is int and 0 < size < 1 << 24:
                return size
        return None

    def _ledger(self) -> dict[str, Any]:
        """Return the newest documents of this node; empty where no agent has written any."""
        return read_object(self.shm_dir.file("ledger.json")) or {}

    def _ledger_processes(self) -> dict[str, Any]:
        found = self._ledger().get("processes")
        if not isinstance(found, dict):
            return {}
        return {id: each for id, each in found.items() if not side_of(id)}

    def requests(self) -> list[Any]:
        """Requests to stop or to save that its agent took, as the documents have them."""
        found = self._ledger().get("requests")
        return found if isinstance(found, list) else []

    @property
    def stop_file_silent_s(self) -> float:
        """Seconds since the stop file was looked for; since the agent was called for, where it never was."""
        words = map_status(self.shm_dir)
        if words is None:
            return 0.0
        looked_ns = max(words[layout.STOP_FILE_BEAT], words[layout.AGENT_CALLED_NS])
        return max(0, time.monotonic_ns() - looked_ns) / 1e9

    def starts(self) -> list[dict[str, Any]]:
        """Start documents of the processes that have the run open."""
        found = []
        for process in self.processes:
            payload = read_document(process.mem, "start", 0) if process.is_open else None
            try:
                start = json.loads(payload[1])["data"] if payload is not None else None
            except (ValueError, LookupError, TypeError):
                continue
            if isinstance(start, dict):
                found.append(start)
        return found

    @property
    def _stall_s(self) -> float:
        settings = self.shm_dir.facts.get("settings")
        stall_s = settings.get("stall_s") if isinstance(settings, dict) else None
        return float(stall_s) if isinstance(stall_s, (int, float)) else 5.0

    @property
    def observer_restarts(self) -> int:
        """Number of times that its observer has died or hung."""
        words = map_status(self.shm_dir)
        return 0 if words is None else words[layout.AGENT_OBSERVER_RESTARTS]

    def observed(self) -> Observation | None:
        """Return the finding of the observer on this node: does the run get on? None where it has none."""
        words = map_status(self.shm_dir)
        if words is None or not words[layout.AGENT_OBSERVED]:
            return None
        found = (read_object(self.shm_dir.file("why.json")) or {}).get("observed")
        return observation_of(found, lambda at, _: at if type(at) is int else 0, node=self.node)

    @property
    def refused(self) -> int:
        """Records that processes without lanes have refused."""
        return refusals.read(self.shm_dir)

    def process(self, id: str) -> LiveLanes | None:
        return next((process for process in self.processes if process.id == id), None)


def scan(config: Config | None = None) -> list[LiveShmDir]:
    """All shm directories of this user on this host, the oldest run first."""
    found = []
    for base in shm_dirs.bases(config or Config.from_env()):
        try:
            names = sorted(os.listdir(base))
        except OSError:
            continue
        for name in names:
            live_dir = None if name.startswith(".") else look(os.path.join(base, name))
            if live_dir is not None:
                found.append(live_dir)
    return sorted(found, key=lambda live_dir: (_created(live_dir), live_dir.run_id))


def look(path: str) -> LiveShmDir | None:
    """The shm directory at `path`; None where there is none."""
    folder = _identity(path)
    there = shm_dirs.read(path)
    if folder is None or there is None or not isinstance(there.facts.get("run_id"), str):
        return None
    live_dir = LiveShmDir(there, folder)
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return None
    for name in names:
        stem = name[: -len(_SUFFIX)]
        if not name.endswith(_SUFFIX) or len(stem) != 32 or set(stem) - set("0123456789abcdef"):
            continue
        try:
            live_dir.processes.append(LiveLanes(path, name))
        except FileNotFoundError:
            continue  # swept since the listing
        except (OSError, ValueError) as error:
            live_dir.bad.append(str(error))
    return live_dir


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _created(live_dir: LiveShmDir) -> int:
    created = live_dir.shm_dir.facts.get("created_ns")
    return created if type(created) is int else 0
