"""Names of signals, as a shell lists them. Pure; for the agent's documents and for readers."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """SIGTERM for 15, SIGRTMIN+1 for the real-time signal behind the first; `signal 250` for what is none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        pass
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        from_first, to_last = number - signal.SIGRTMIN, signal.SIGRTMAX - number
        return f"SIGRTMIN+{from_first}" if from_first <= to_last else f"SIGRTMAX-{to_last}"
    return f"signal {number}"
