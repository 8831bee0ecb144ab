"""Forms of answers: written for `/openapi.json`, where clients and tests read them. `responses.py` makes them.

Nothing is validated by these on the way out: a list of 10,000 runs would pay for it each time. Tests do.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Fields may be added; none goes."""

    model_config = ConfigDict(extra="allow")


class Error(Shape):
    """Every error."""

    error: str = Field(description="A word for programs: no_run, bad_request, unauthorized, ...")
    message: str = Field(description="What happened and what to do.")


Odd = Literal["nan", "inf", "-inf"]
Number = int | float | Odd
Value = int | float | bool | str


class Observed(Shape):
    """The state of a run that does not get on."""

    kind: str = Field(description="quiet: a rank is late. stalled: those that are late stand still.")
    verdict: str = Field(description="As `logclient why` has it; empty: not known yet.")
    text: str
    since_ns: int
    rank: int | None
    step: int | None


class RunRow(Shape):
    """A run in a list."""

    id: str
    name: str
    project: str
    group: str
    tags: list[str]
    state: str = Field(
        description="As of now: running, late, finished, failed, preempted, killed, terminated, replaced or lost."
    )
    reason: str
    created_ns: int = Field(description="ns since 1970 UTC, as all times here; 0: unknown.")
    ended_ns: int = Field(description="0: not yet.")
    active_ns: int = Field(description="Time in which it ran: gaps between attempts are not counted.")
    rest_s: int = Field(
        0, description="At rest: by how many seconds longer than of other runs nothing may come from it."
    )
    uploaded_ns: int = Field(
        0, description="It was uploaded while it ran, and is as it was then: late, never lost. 0: it was not."
    )
    observed: Observed | None = Field(
        None, description="While it runs and does not get on: what the observer of a node has found."
    )
    edited: list[str] = Field(
        default_factory=list, description="What was edited after the fact: name, group, notes, tags."
    )
    last_seen_ns: int = Field(description="When anything came from it last, by this collector's clock.")
    attempts: int
    records: int
    points: int
    bytes: int
    counts: dict[str, int]
    deleted_ns: int = Field(description="0: it is not deleted.")
    columns: dict[str, Any] = Field(
        default_factory=dict, description="What `column` asked for, where there is such a value."
    )


class RunList(Shape):
    """A page of runs."""

    runs: list[RunRow]
    next: str = Field(description="Ask again with `after` set to this; empty: that was all.")
    total: int = Field(description="Of all pages.")
    now_ns: int
    at: int = Field(description="Position of what is in it at least, as in events of the stream.")


class RunWhole(RunRow):
    """All that is known of a run but its points."""

    notes: str
    config: dict[str, Any]
    summary: dict[str, Any]
    ranks: list[int]
    processes: dict[str, int] = Field(description="Attempt by process.")
    more: dict[str, Any] = Field(description="Alerts, notices, hosts, exit code, ...")
    links: dict[str, str]
    now_ns: int


class NodeReport(Shape):
    """One node of a run, which may not get on there."""

    node: str
    kind: str | None = Field(
        description="ok: no rank is late. quiet: one is. stalled: those that are late stand still. off: nobody looks. "
        "null: its agent sends no reports."
    )
    report: str | None = Field(
        description="JSON, as `logclient why --local --json` prints it on the node. This collector did not check it."
    )
    age_s: float | None = Field(description="Since it was seen on the node; null: there is no report.")
    silent_s: float = Field(description="Since anything came from the node.")
    is_open: bool = Field(
        description="Its agent has a conversation open, in which something comes every 10 s."
    )
    trouble: str = Field(description="Why there is no report; empty: there is one, or none is needed.")


class NodeReports(Shape):
    """A page of the nodes that shipped the run lately."""

    run: str
    nodes: list[NodeReport]
    next: str = Field(description="Ask again with `after` set to this; empty: that was all.")
    now_ns: int


class Spread(Shape):
    """A column over the runs of a group."""

    runs: int = Field(description="How many have a finite number there.")
    mean: Number | None
    min: Number | None
    max: Number | None


class GroupRow(Shape):
    """The runs that have one value."""

    value: str | int | float | bool | None = Field(
        description="null: those that have none. NaN and infinities are texts."
    )
    runs: int
    states: dict[str, int] = Field(description="How many runs are in which state, as of now.")
    created_ns: int = Field(description="Start of the first of them; 0: unknown.")
    last_seen_ns: int = Field(description="When anything came from any of them last.")
    columns: dict[str, Spread]


class GroupList(Shape):
    """A page of groups, that with the newest run first."""

    by: str
    groups: list[GroupRow]
    next: str
    total: int
    runs: int = Field(description="Of all groups.")
    left_out_runs: int = Field(description="Runs beyond the limit of one question, the oldest.")


class Why(Shape):
    """A verdict and its evidence, as `logclient why --json` has them."""

    run: str
    now_ns: int
    why: int = Field(description="Version of the fields below.")
    verdict: str
    stuck: bool
    text: str
    pids: list[int]
    blamed: list[dict[str, Any]]
    missing_ranks: list[int]
    nodes: list[dict[str, Any]]
    spread_s: float
    processes: list[dict[str, Any]]
    groups: list[dict[str, Any]] = Field(description="Processes with equal stacks: those to blame first.")
    gpus: list[dict[str, Any]]
    kernel_log: list[dict[str, Any]]


class EditShape(Shape):
    """One edit of one field of a run."""

    field: str = Field(description="name, group, notes or tag.")
    tag: str = Field("", description="Which, with the field tag.")
    value: str | bool | None = Field(description="Of a tag: whether it is there. null: undone.")
    counter: int = Field(
        description="Of edits of a field the one with the highest counter holds, then origin."
    )
    origin: str
    who: str
    place: str = Field(description="folder: it came with the run. collector: it was made here.")
    time_ns: int = Field(description="Shown; it decides nothing.")


class EditHistory(Shape):
    """Edits of a run, the newest last."""

    run: str
    edits: list[EditShape]
    unedited: dict[str, Any] = Field(
        description="Name, group, notes and tags below the edits; empty: none holds."
    )


class Edited(EditHistory):
    """A run after an edit."""

    name: str
    group: str
    notes: str
    tags: list[str]


class ChangedRun(Shape):
    """The outcome for one run of several."""

    run: str
    done: bool
    error: str = Field("", description="A word for programs, where it was not done.")
    message: str = ""


class ChangedRuns(Shape):
    """The outcome for each run, in the order in which they were named."""

    runs: list[ChangedRun]
    at: int = Field(
        description="Position of the store afterwards: an event of the stream with a lower one is older."
    )


class Environments(Shape):
    """Environments of a run's program, node by node, the newest last."""

    run: str
    environments: list[dict[str, Any]] = Field(
        description="Each has node, host, captured_ns, command, code, machine, gpus, packages, and missing: what is "
        "not known, and why."
    )


class Deleted(Shape):
    """The outcome of a deletion."""

    run: str
    deleted: bool


class LastValue(Shape):
    """The newest value of a key."""

    value: Value
    type: str = Field(description="float, rounded (from a wider number), int, bool or text.")
    step: int
    time_ns: int
    rank: int | None


class KeyRow(Shape):
    """A key of a run."""

    key: str
    types: list[str]
    points: int
    first_step: int
    last_step: int
    last: LastValue


class KeyList(Shape):
    """Keys, in the order in which they came first."""

    run: str
    keys: list[KeyRow]
    next: str
    total: int


class LastRow(Shape):
    """The newest value of one key of one run."""

    run: str
    key: str
    last: LastValue


class LastList(Shape):
    """The newest values that there are, and which of the names that were asked for are unknown."""

    values: list[LastRow]
    unknown_keys: list[str] = Field(description="Keys that were asked for and that none of these runs has.")
    unknown_runs: list[str] = Field(description="Runs that were asked for and that are not here.")


class ExtremesRow(Shape):
    """Newest, lowest and highest value of one key."""

    key: str
    last: LastValue
    min: Number | None = Field(description="The lowest finite value; null: there is none.")
    max: Number | None = Field(description="The highest finite value; null: there is none.")


class ExtremesList(Shape):
    """Some of a run's keys, in the order in which they came first."""

    run: str
    keys: list[ExtremesRow]
    next: str
    total: int


class RunSettings(Shape):
    """Config and summary of a run; NaN is {"$float": "nan"} here."""

    run: str
    config: dict[str, Any]
    summary: dict[str, Any]


class SettingsList(Shape):
    """Config and summary of several runs."""

    runs: list[RunSettings]
    unknown_runs: list[str] = Field(description="Ids that were asked for and are not here.")
    left: list[str] = Field(description="Ids that were asked for and did not fit: ask again with these.")


class RunExtremes(Shape):
    """Newest, lowest and highest value of one key of one run."""

    run: str
    key: str
    last: LastValue
    min: Number | None
    max: Number | None


class RunsExtremes(Shape):
    """Extremes of some keys of several runs, where they have them."""

    values: list[RunExtremes]
    unknown_runs: list[str]
    left: list[str] = Field(description="Ids that were asked for and did not fit: ask again with these.")


class StreamRow(Shape):
    """A stream."""

    stream: str
    process: str
    lane: int
    attempt: int


class AttemptSteps(Shape):
    """Steps in which an attempt logged a key."""

    attempt: int
    first_step: int
    last_step: int


class Series(Shape):
    """Raw points: each that is stored, once; none was reduced."""

    run: str
    key: str
    is_reduced: Literal[False]
    step: list[int] = []
    value: list[Value] = []
    type: str = Field(description="float, int, bool or text where all values are; else mixed.")
    types: str = Field("", description="Of mixed values, a letter each: f float, i int, b bool, t text.")
    time_ns: list[int] = []
    rank: list[int | None] = []
    stream: list[int] = Field(
        [], description="Index into `streams`. Where attempts overlap, the highest counts."
    )
    seq: list[int] = []
    order: list[int] = []
    streams: list[StreamRow]
    spans: list[AttemptSteps] = Field(
        [],
        description="Of the whole series: of an older attempt, points inside a later one's steps do not count.",
    )
    next: str = Field(
        description="Ask again with `after` set to this for what follows, and later for what came since."
    )
    is_all: bool = Field(description="There is nothing more now.")


class SeriesList(Shape):
    """Raw points of one key of several runs, run by run."""

    key: str
    series: list[Series] = Field(
        description="Where one is not `is_all`, `/run/series` goes on with its `next` as `after`."
    )
    without_key: list[str]
    unknown_runs: list[str]
    left: list[str] = Field(description="Ids that were asked for and did not fit: ask again with these.")


class Reduced(Shape):
    """A series reduced to the extremes of ranges of steps."""

    run: str
    key: str
    is_reduced: Literal[True]
    method: Literal["min_max"]
    leaves_out_texts: bool = Field(description="The key was logged with texts, too; they are not in it.")
    points: int = Field(description="How many went in.")
    width: int = Field(description="Steps of a bucket; a power of two.")
    first_step: int
    last_step: int
    start: list[int] = Field(description="First step of each bucket that holds something.")
    count: list[int] = Field(description="Points of each, NaN and infinities included.")
    nans: list[int]
    infs: list[int] = Field(description="Points that are plus infinity.")
    neg_infs: list[int] = Field(description="Points that are minus infinity.")
    min: list[Number] = Field(description="Of the finite points; NaN where there are none.")
    max: list[Number]
    last: list[Number]


class ConsoleProcess(Shape):
    """A process whose output was captured."""

    process: str
    rank: int | None
    pieces: int = Field(description="Texts that it wrote, as they are stored.")
    lost: int = Field(description="Those that are missing.")
    first_ns: int
    last_ns: int


class ConsoleLine(Shape):
    """A line as it stands: of a progress bar the newest state."""

    seq: int = Field(description="Of the piece that changed it last.")
    time_ns: int = Field(description="When that was.")
    number: int = Field(description="Lines that the process had begun by then, over both streams.")
    stream: Literal["stdout", "stderr"]
    text: str = Field(description="Without colours and control characters.")
    lost: int = Field(description="Pieces that are missing before it.")
    cut: int = Field(description="Characters that it lacks at its end.")
    is_open: bool = Field(description="It may change: it is in the next page again.")


class ConsolePage(Shape):
    """Lines of one process, in order."""

    run: str
    process: str = Field(description="Whose they are; empty where no output was captured.")
    processes: list[ConsoleProcess] = Field(description="By rank, the newest of a rank first; at most 1,000.")
    lines: list[ConsoleLine]
    previous: int = Field(description="For `before`: what comes before these lines; 0: nothing does.")
    next: int = Field(description="For `after`: what comes behind these lines, also later.")
    is_all: bool = Field(description="There is nothing more behind them now.")


class Documents(Shape):
    """By node, as the agents stored them."""

    run: str
    last_seen_ns: int
    now_ns: int
    nodes: dict[str, Any]


class Tree(Shape):
    """A config or summary as it was logged."""

    run: str
    values: dict[str, Any]


class Info(Shape):
    """This collector's description of itself."""

    collector: str
    version: str
    api: int
    role: str
    not_ready: str = Field(description="Why nothing new is taken at this moment; empty: it is.")
    now_ns: int
    statistics: dict[str, Any]


class SessionState(Shape):
    """The caller as he is known here, and whether a login is needed."""

    is_login_needed: bool
    name: str = Field(description="Of the token; empty: nobody is known.")
    roles: list[str] = Field(description="Roles of the token.")
    may: list[str] = Field(description="Roles that it may act in: all of them for `admin`.")
    ends_ns: int = Field(
        description="When the session ends; 0: there is none, as with a token or `--no-auth`."
    )
    now_ns: int


class AskedFor(Shape):
    """A request to stop or to save."""

    id: str
    attempt: int = Field(description="The attempt of the run that it is for.")
    kind: str
    save: bool
    reason: str
    by: str = Field(description="Name of the token.")
    time_ns: int
    step: int | None = Field(description="After which it comes true; null: at once.")


class Asked(AskedFor):
    """A request that was taken."""

    run: str
    nodes: int = Field(description="To how many it was sent at once; others get it when they ship next.")
    now_ns: int


class Requests(Shape):
    """Requests that came to this collector."""

    run: str
    requests: list[AskedFor]
