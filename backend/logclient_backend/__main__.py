"""`python -m logclient_backend`: the command line, and the hidden `agent` that `logclient.init` starts.

The agent is told apart before anything is imported: its launcher has to be gone within some 50 ms.
"""

import sys


def main() -> int:
    if sys.argv[1:2] == ["agent"]:
        from logclient.config import agent_path

        sys.path += [path for path in agent_path() if path not in sys.path]
        from logclient_backend.agent.launcher import main as launch

        return launch(sys.argv[2:])
    from logclient_backend.cli import main as command

    command()
    return 0


if __name__ == "__main__":
    sys.exit(main())
