"""The text of `why.txt`: ranks, sections, groups of stacks, and last calls where there is no stack."""

from __future__ import annotations

from logclient_backend.observe.page import page
from logclient_backend.observe.process import Sample
from logclient_backend.observe.recorded import LastCall, ThreadCalls
from logclient_backend.observe.report import Node, Report, put_together
from logclient_backend.observe.stacks import Frame, Stacks, Thread
from logclient_backend.observe.verdict import Look, Observed
from logclient_backend.runs.sections import Sections
from logclient_backend.runs.sections import SectionTime as Time

BARRIER = Frame(
    "barrier", "/opt/python/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 5
)
MAIN = Frame("train", "/home/me/train.py", 40)


def observed(rank: int, *frames: Frame, state: str = "S") -> Observed:
    pid = 100 + rank
    sample = Sample(pid, 1, "python", state, 1, 1.0, "futex_wait")
    look = Look(sample, Stacks(pid, (Thread(pid, "", True, False, frames),)))
    return Observed(pid, look, look, 1.0, rank, step=7, age_s=60.0, limit_s=10.0)


def test_page_has_rows_groups_and_what_stands_for_a_stack() -> None:
    """A rank whose stack cannot be read shows why, its section and its last calls."""
    hung = observed(2, state="D")
    hung.second = Look(hung.second.sample, Stacks(hung.pid, reason="its stack could not be read in time"))
    hung.sections = Sections("save", 61.0, (Time("save", 61.0),))
    hung.ptracer = "process 102 let the agent with PID 7 read its stack"
    hung.calls = (
        ThreadCalls(
            102,
            (
                LastCall("save", "/home/me/train.py", 5, False, 61.5),
                LastCall("close", "/home/me/train.py", 9, True, 61.25),
            ),
        ),
    )
    others = [observed(rank, BARRIER, MAIN) for rank in (0, 1)]
    job = put_together([Report(Node("host", "", "", 0), [*others, hung])])
    text = "\n".join(page(job))
    assert (
        "rank 2 (PID 102): D futex_wait, CPU 0%, step 7, last record 60 s ago, in section 'save' for 61 s: "
        "its stack could not be read in time" in text
    )
    assert "process 102 let the agent with PID 7 read its stack" in text
    assert "61.5 s ago  called save (/home/me/train.py:5)" in text
    assert "61.2 s ago  returned from close (/home/me/train.py:9)" in text
    assert "rank 0, rank 1:\n    barrier (" in text
