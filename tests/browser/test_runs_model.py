"""The runs that the table knows: an answer that comes late takes back nothing that came since it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from logclient_backend.collector.tokens import EVERYBODY
from tests.browser.many_runs import fill
from tests.served import backing, made_store, serving

from .chart_data import module

RUNS = 5
MODEL = """
const model = new it.Runs({changed: () => {}, failed: (error) => console.error(error)});
const ask = {columns: new Set(['config::lr']), conditions: [], sort: 'created_ns', order: 'desc'};
"""


HOLD = """
const held = [];
const real = window.fetch;
window.fetch = async (...asked) => {
  const answer = await real(...asked);
  if (String(asked[0]).includes('/api/v1/runs?')) await new Promise((go) => held.push(go));
  return answer;
};
const areHeld = async (count) => {
  while (held.length < count) await new Promise((go) => setTimeout(go, 5));
};
const letGo = () => {
  window.fetch = real;
  held.push = (go) => go();
  for (const go of held) go();
};
"""  # answers, each made when it was asked for


@pytest.fixture
def model(page: Page, tmp_path: Path) -> Iterator[Page]:
    """A page whose `model` has all runs."""
    with (
        made_store(tmp_path / "data") as store,
        serving(backing(store, check=lambda token: EVERYBODY)) as url,
    ):
        fill(store, RUNS)
        page.goto(f"{url}/#/compare")  # it asks for no list of runs itself
        module(page, "runs/model.js", MODEL + "globalThis.model = model; model.ask(ask);")
        page.wait_for_function("() => model.hasLoaded && !model.isLoading")
        yield page
        page.goto("about:blank")


def change(page: Page, body: str) -> Any:
    return page.evaluate(f"async () => {{ const [id, other] = [...model.byId.keys()]; {body} }}")


def test_a_late_answer_takes_back_no_change(model: Page) -> None:
    """Columns are asked for, a run gets a group and another is gone, and then the answers come."""
    found = change(
        model,
        HOLD
        + """
        const asked = [model.refreshColumns([id]), model.refreshColumns([other])];
        await areHeld(2);
        model.apply([{id, group: 'mine'}], [other]);
        letGo();
        await Promise.all(asked);
        return [model.byId.get(id), model.byId.size, model.total];
        """,
    )
    assert (found[0]["group"], *found[1:]) == ("mine", RUNS - 1, RUNS - 1)
    assert found[0]["columns"]["config::lr"]


def test_what_changes_while_the_list_is_loaded_is_in_it(model: Page) -> None:
    """A run that came, one that has changed before its row is here, one that is gone."""
    found = change(
        model,
        HOLD
        + """
        model.byId.delete(id);
        const asked = model.reload();
        await areHeld(1);
        const came = {id: 'new', name: 'new', state: 'running', columns: {}};
        model.apply([{id, group: 'mine'}, came], [other]);
        letGo();
        await asked;
        const {group, name} = model.byId.get(id);
        return [group, name, model.byId.has(other), model.byId.get('new')?.name, model.total, model.byId.size];
        """,
    )
    assert found[0] == "mine"
    assert found[1].startswith("resnet50")
    assert found[2:] == [False, "new", RUNS, RUNS]


def test_the_answer_of_an_edit_takes_back_no_later_edit(model: Page) -> None:
    """Another value that the stream brought first is left; an older event with the value from before is none."""
    edit = """
      const ask = async () => {
        model.apply([{id, group: 'later'}, {id: other, group: model.byId.get(other).group, records: 7}]);
        return {done: [id, other], at: 1};
      };
      await model.edit([id, other], 'group', ask, () => 'mine');
      return [model.byId.get(id).group, model.byId.get(other).group];
    """
    assert change(model, edit) == ["later", "mine"]


EDIT = """
  const edit = async (group) => {
    const headers = {'Content-Type': 'application/json', 'X-Logclient': '1'};
    const body = JSON.stringify({runs: [id], group});
    const {at} = await (await fetch('/api/v1/runs/edit', {method: 'POST', headers, body})).json();
    return {done: [id], at};
  };
  const until = async (condition) => {
    while (!condition()) await new Promise((go) => setTimeout(go, 5));
  };
"""


def test_an_event_from_before_an_edit_takes_back_nothing_of_it(model: Page) -> None:
    """Its other fields hold; what somebody else has set since is asked for; a newer event holds."""
    found = change(
        model,
        EDIT
        + """
        let last;
        await model.edit([id], 'group', async () => (last = await edit('mine')), () => 'mine');
        model.apply([{id, group: 'old', records: 7}], [], last.at - 1);
        const kept = [model.byId.get(id).group, model.byId.get(id).records];
        await edit('theirs');
        model.apply([{id, group: 'old'}], [], last.at - 1);
        await until(() => model.byId.get(id).group !== 'mine');
        const asked = model.byId.get(id).group;
        model.apply([{id, group: 'newest'}], [], last.at);
        return [...kept, asked, model.byId.get(id).group];
        """,
    )
    assert found == ["mine", 7, "theirs", "newest"]


def test_a_list_from_before_the_stream_is_loaded_again(model: Page) -> None:
    """A change between the two is in no event; a stream that began before the list changes nothing."""
    found = change(
        model,
        EDIT
        + """
        const first = model.byId.get(id).group;
        const {at} = await edit('between');
        model.streamBegan(at - 1);
        const before = [model.isLoading, model.byId.get(id).group === first];
        model.streamBegan(at);
        await until(() => !model.isLoading);
        return [...before, model.byId.get(id).group];
        """,
    )
    assert found == [False, True, "between"]
