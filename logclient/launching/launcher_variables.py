"""The launcher that started this process, by its variables, so that all ranks of one launch find one run.

Runs in the training process, in `init`.

==============  ==============================================  ===================================================
launcher        known by                                        what names its launch
==============  ==============================================  ===================================================
logclient       LOGCLIENT_LAUNCH                                that variable
torchrun        TORCHELASTIC_RUN_ID, RANK                       in a SLURM job: job, step, rendezvous id, endpoint,
                                                                command. Else on one node: the launcher's start.
                                                                Else: rendezvous id, endpoint, command
mpirun          OMPI_COMM_WORLD_RANK                            its namespace or job id, else the launcher's start
srun            SLURM_STEP_ID, SLURM_PROCID                     cluster, job id, step id
hydra, PMI      PMI_RANK, PMI_SIZE                              PMI_JOBID, else the launcher's start
by hand, and    RANK, WORLD_SIZE                                MASTER_ADDR and MASTER_PORT; on one node the
all else                                                        start of what set RANK, too
torch's spawn   its process group, where nothing else tells     MASTER_ADDR and MASTER_PORT, start of the parent
==============  ==============================================  ===================================================

Invariants:

- equal for all ranks of a launch, on all its nodes, and for its restarts, which it counts as attempts; world size is
  no part of it, for a restart may have another one;
- a descendant of a rank inherits its variables and is no rank: see `start.py`;
- what cannot be told apart is one run rather than none: two launches by hand on several nodes, with one address and
  port, continue each other as attempts. `LOGCLIENT_RUN_ID` parts them.
"""

from __future__ import annotations

import sys

from ..guest.digest import blake2b
from ..shm import layout
from . import ancestry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")  # not the same in a launcher and its ranks


class Launch:
    """One launch, as the process of one rank sees it."""

    __slots__ = (
        "_find_names",
        "_find_start",
        "_names",
        "attempt",
        "is_one_node",
        "is_sure",
        "kind",
        "rank",
        "world_size",
    )

    def __init__(
        self,
        kind: str,
        find_names: Callable[[], tuple[str, ...]],
        rank: int | None,
        world_size: int | None,
        attempt: int = 0,
        *,
        is_sure: bool = True,
        find_start: Callable[[], str] = str,
    ) -> None:
        self.kind = kind
        self._find_names = find_names  # who only wants the rank does not pay for them: they may be in /proc
        self._names: tuple[str, ...] | None = None
        self.rank = rank
        self.world_size = world_size
        self.attempt = attempt  # how often it was restarted
        self._find_start = find_start  # what tells it from a later launch that has its names and gets its run
        self.is_one_node: bool | None = None  # are all ranks on this node? None: nobody says
        self.is_sure = is_sure  # no other launch ever has these names, this start and this attempt

    @property
    def names(self) -> tuple[str, ...]:
        """Words that name the launch: see the table."""
        if self._names is None:
            self._names = self._find_names()
        return self._names

    @property
    def digest(self) -> str:
        """A name of the launch."""
        return _digest(self.kind, *self.names)

    def run_id(self, project: str, name: str, ordinal: int) -> str:
        """Return the id of the run that each rank gets from its `ordinal`-th `init` with this project and name."""
        return f"{self.kind}-{_digest(self.kind, *self.names, project, name, str(ordinal))}"

    def facts(self) -> dict[str, object]:
        """For the start document."""
        id = _digest(self.kind, *self.names, self._find_start()) if self.is_sure else ""
        return {
            "kind": self.kind,
            "id": id,
            "attempt": self.attempt,
            "world_size": self.world_size,
            "is_one_node": self.is_one_node,
        }


def find(env: Mapping[str, str]) -> Launch | None:
    """The launch that these variables tell of; None where no launcher says how many ranks there are."""
    for look in (_logclient, _torchrun, _mpirun, _srun, _pmi, _by_hand, _in_group):
        launch = look(env)
        if launch is not None and (launch.world_size or 0) > 1:
            launch.is_one_node = _is_one_node(env, launch.world_size or 0)
            return launch
    return None


def _is_one_node(env: Mapping[str, str], size: int) -> bool | None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        local = _number(env, name)
        if local:
            return local >= size
    nodes = _number(env, "SLURM_STEP_NUM_NODES")
    return None if nodes is None else nodes == 1


def rank_of(env: Mapping[str, str], launch: Launch | None) -> int | None:
    """This process's rank: as somebody set it, as its launcher or a process group says, or None."""
    for rank in (
        _number(env, "LOGCLIENT_RANK"),
        None if launch is None else launch.rank,
        _number(env, "RANK"),
    ):
        if rank is not None:
            return rank
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        rank = _number(env, name)
        if rank is not None:
            return rank
    return _group()[0]


def rank_of_child(env: Mapping[str, str], given: int, before: int | None) -> int | None:
    """The rank of a forked child: as the variables say now, else that of its parent; `given`: as `init` was told."""
    if given >= 0 and _number(env, "LOGCLIENT_RANK") in (None, given):
        return before
    rank = rank_of(env, find(env))
    return before if rank is None else rank


def _logclient(env: Mapping[str, str]) -> Launch | None:
    launch = env.get("LOGCLIENT_LAUNCH")
    if not launch:
        return None
    return Launch("launch", lambda: (launch,), _number(env, "RANK"), _number(env, "WORLD_SIZE"))


def _torchrun(env: Mapping[str, str]) -> Launch | None:
    rank = _number(env, "RANK")
    if "TORCHELASTIC_RUN_ID" not in env or rank is None:
        return None
    is_job = "SLURM_JOB_ID" in env  # may be requeued: its launcher starts again then
    is_one_node = env.get("LOCAL_WORLD_SIZE", "") == env.get("WORLD_SIZE")

    def start() -> str:
        return ancestry.launcher(env, *_RANKS, "TORCHELASTIC_ERROR_FILE")

    def names() -> tuple[str, ...]:
        run_id = env["TORCHELASTIC_RUN_ID"]
        if is_one_node and not is_job:
            return (run_id, start())
        return (*(_slurm_step(env) if is_job else ()), run_id, _endpoint(env), _command())

    attempt = 1000 * _requeues(env) + (_number(env, "TORCHELASTIC_RESTART_COUNT") or 0)
    size = _number(env, "WORLD_SIZE")
    find_start = start if is_one_node and is_job else str
    return Launch("torchrun", names, rank, size, attempt, is_sure=is_one_node, find_start=find_start)


def _mpirun(env: Mapping[str, str]) -> Launch | None:
    rank = _number(env, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None

    def names() -> tuple[str, ...]:
        job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
        if not job:
            return (ancestry.launcher(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),)
        # such a number may come again after a reboot
        return (job, env.get("OMPI_MCA_orte_hnp_uri") or env.get("PMIX_SERVER_URI41") or "")

    return Launch("mpirun", names, rank, _number(env, "OMPI_COMM_WORLD_SIZE"))


def _srun(env: Mapping[str, str]) -> Launch | None:
    """A step. The batch script is none, and has SLURM_PROCID and SLURM_NTASKS all the same."""
    rank = _number(env, "SLURM_PROCID")
    if "SLURM_STEP_ID" not in env or rank is None:
        return None
    if (_number(env, "SLURM_STEP_NUM_TASKS") or 0) < 2:
        return None
    given = _number(env, "RANK") if _number(env, "WORLD_SIZE") is not None else None
    size = _number(env, "WORLD_SIZE" if given is not None else "SLURM_STEP_NUM_TASKS")
    return Launch("srun", lambda: _slurm_step(env), rank if given is None else given, size, _requeues(env))


def _pmi(env: Mapping[str, str]) -> Launch | None:
    rank = _number(env, "PMI_RANK")
    if rank is None:
        return None

    def names() -> tuple[str, ...]:
        return (env.get("PMI_JOBID") or ancestry.launcher(env, "PMI_RANK", "PMI_SIZE"),)

    return Launch("pmi", names, rank, _number(env, "PMI_SIZE"))


def _by_hand(env: Mapping[str, str]) -> Launch | None:
    rank = _number(env, "RANK")
    if rank is None:
        return None
    is_one_node = env.get("MASTER_ADDR", "") in _LOOPBACK or (
        env.get("LOCAL_WORLD_SIZE", "0") == env.get("WORLD_SIZE")
    )

    def names() -> tuple[str, ...]:
        if "SLURM_STEP_ID" in env:
            return (*_slurm_step(env), _endpoint(env))
        return (_endpoint(env), *((ancestry.launcher(env, *_RANKS),) if is_one_node else ()))

    return Launch("ranks", names, rank, _number(env, "WORLD_SIZE"), _requeues(env), is_sure=is_one_node)


def _slurm_step(env: Mapping[str, str]) -> tuple[str, ...]:
    job = env.get("SLURM_JOB_ID", "")
    return (env.get("SLURM_CLUSTER_NAME", ""), job, env.get("SLURM_STEP_ID", "batch"))


def job(env: Mapping[str, str]) -> dict[str, object] | None:
    """The scheduler's job that this process is part of, for the start document: the agent may ask what became of it."""
    id = _number(env, "SLURM_JOB_ID")
    if id is None:
        return None
    array, task = _number(env, "SLURM_ARRAY_JOB_ID"), _number(env, "SLURM_ARRAY_TASK_ID")
    name = str(id) if array is None or task is None else f"{array}_{task}"
    step = env.get("SLURM_STEP_ID", "batch")
    return {"scheduler": "slurm", "id": id, "name": name, "step": step, "restarts": _requeues(env)}


def _requeues(env: Mapping[str, str]) -> int:
    return _number(env, "SLURM_RESTART_COUNT") or 0


def _endpoint(env: Mapping[str, str]) -> str:
    return f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"


def _command() -> str:
    """Return the command of the launch, the same on every node: two launches of one job mostly differ in it."""
    words = ancestry.command().split(b"\0")
    return _digest(
        *(word.decode("latin-1") for word in words if not word.startswith((b"--local-rank", b"--local_rank")))
    )


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if text.isascii() and text.isdigit() and len(text) < 11 and int(text) < layout.MAX_RANKS:
        return int(text)
    return None


def _in_group(env: Mapping[str, str]) -> Launch | None:
    """A child of `torch.multiprocessing`, mostly: no variable says its rank, its process group does."""
    rank, size = _group()
    if rank is None:
        return None
    return Launch("torch", lambda: (_endpoint(env), ancestry.parent()), rank, size, is_sure=False)


def _group() -> tuple[int | None, int]:
    """Rank and size of torch's process group, where that is in use."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:  # noqa: BLE001 - half imported, another version: there is no group then
        pass
    return None, 0


def _digest(*words: str) -> str:
    text = "\0".join(words).encode("utf-8", "surrogatepass")
    return str(blake2b(text, digest_size=10).hexdigest())
