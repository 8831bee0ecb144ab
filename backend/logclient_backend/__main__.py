"""`python -m logclient_backend`: the command line, the hidden `agent` that `logclient.init` starts, and the hidden
`send-alerts` and `answer-web` of a collector.

The agent is told apart before anything is imported: its launcher has to be gone within some 50 ms.
"""

import os
import sys
from importlib.util import find_spec, module_from_spec


def main() -> int:
    """Be the agent, or the command line."""
    if sys.argv[1:2] == ["agent"]:
        _take_paths(*sys.argv[2:3])
        _leave_out_the_client()
        from logclient_backend.agent.supervise.launcher import main as launch

        return launch(sys.argv[2:])
    if sys.argv[1:2] == ["send-alerts"]:
        from logclient_backend.alerts.sender import main as send

        return send(sys.argv[2])
    if sys.argv[1:2] == ["answer-web"]:
        from logclient_backend.collector.web_process import main as answer

        return answer(sys.argv[2])
    from logclient_backend.cli import main as command

    command()
    return 0


def _take_paths(shm_dir: str = "") -> None:
    """Add the folders of the trainer's modules behind our own: packages of the agent may be there, and nowhere else."""
    try:
        with open(f"{shm_dir}/agent.path", "rb", opener=_no_wait) as file:
            paths = [os.fsdecode(path) for path in file.read(1 << 24).split(b"\0") if path]
    except OSError:
        return
    sys.path += [path for path in paths if path not in sys.path]


def _leave_out_the_client() -> None:
    """Let `logclient` be a package whose modules load when asked for: its `__init__` imports the trainer's half.

    The agent uses the shared protocol only, and `init` waits for this process.
    """
    spec = find_spec("logclient")
    if spec is not None:
        sys.modules["logclient"] = module_from_spec(spec)


def _no_wait(path: str, flags: int) -> int:
    """An opener; `logclient.shm.regular` may be out of reach yet."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


if __name__ == "__main__":
    sys.exit(main())
