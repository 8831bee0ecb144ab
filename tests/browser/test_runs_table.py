"""The runs table, as a user has it: filter, sort, groups, columns, selection, views, keys."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from logclient_backend.collector.store.interface import Store
from logclient_backend.collector.tokens import EVERYBODY
from tests.browser import pictures
from tests.browser.conftest import HEIGHT, WIDTH, Watched, set_hidden, settled, watching
from tests.browser.many_runs import fill, run_of
from tests.served import backing, made_store, serving

RUNS = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with made_store(tmp_path_factory.mktemp("runs") / "data") as made:
        fill(made, RUNS)
        yield made


@pytest.fixture(scope="module")
def url(store: Store) -> Iterator[str]:
    with serving(backing(store, check=lambda token: EVERYBODY)) as found:
        yield found


def parameters(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).fragment.partition("?")[2], keep_blank_values=True)


class RunsTable:
    """The page as a user reads it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.rows = page.locator("table.runs tbody tr[aria-selected]")
        self.groups = page.locator("table.runs tbody tr.group")
        self.filter = page.get_by_label("Filter runs")
        self.count = page.locator(".toolbar > .count")
        self.note = page.locator("#filter-note")

    def open(self, query: str = "") -> RunsTable:
        self.page.goto(f"{self.url}/#/runs{query}")
        expect(self.count).to_have_text(re.compile(r"^[\d,]+ (of [\d,]+ )?runs?$"))
        return self

    def column(self, name: str) -> list[str]:
        """The texts of a column, of the rows in sight."""
        heads = [text.rstrip("▲▼") for text in self.page.locator("table.runs thead th").all_inner_texts()]
        at = heads.index(name)
        texts = "(rows, at) => rows.map((row) => row.children[at].innerText)"
        found: list[str] = self.rows.evaluate_all(texts, at)
        return found

    def column_of_groups(self, name: str) -> list[str]:
        """The texts of a column, of the groups in sight."""
        heads = [text.rstrip("▲▼") for text in self.page.locator("table.runs thead th").all_inner_texts()]
        texts = "(rows, at) => rows.map((row) => row.children[at].innerText)"
        found: list[str] = self.groups.evaluate_all(texts, heads.index(name))
        return found

    def parameters(self) -> dict[str, list[str]]:
        """Return those of the link."""
        return parameters(self.page.url)

    def wait_for_link(self, **wanted: str) -> None:
        """The link follows a moment after the last key."""
        self.page.wait_for_url(
            lambda url: all(parameters(url).get(name) == [wanted[name]] for name in wanted)
        )

    def head(self, name: str) -> Locator:
        return self.page.locator("table.runs thead th").get_by_role("button", name=name)


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[Watched]:
    """One page for all tests here, which keeps what it has cached."""
    with watching(browser) as found:
        yield found


@pytest.fixture
def table(shared: Watched, url: str) -> Iterator[RunsTable]:
    found = RunsTable(shared.page, url)
    yield found
    shared.check()
    shared.page.evaluate("localStorage.clear()")
    shared.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    shared.page.goto("about:blank")


FILTERS = {
    "VIT-base": ("Name", r"^vit-base-"),
    "tag=long": ("Tags", r"long"),
    "config.lr<0.001": ("lr", r"^0\.0003$"),
    "state=failed": ("State", r"^failed"),
    "train/loss<0.5": ("train/loss", r"^0\.4\d*$"),
    '"vit-base-adamw-s1" -distill': ("Name", r"^vit-base-adamw-s1$"),
    "dropped>0": ("Dropped", r"^(1,204|3)$"),
}
WRONG = {
    "learning_rate<1": "There is no field, metric or setting “learning_rate”",
    "config.lr<": "After “config.lr<” a value is missing",
    '"open': "A quote is not closed",
    "records>many": "“records” is a number",
    "created>soon": "“created” is a time",
    "=3": "Before “=” a name is missing",
}


def test_filter_answers_while_typing(table: RunsTable) -> None:
    """Names, tags, settings, state and metrics; terms hold together."""
    table.open()
    for text, (column, shows) in FILTERS.items():
        table.filter.fill("")
        table.filter.press_sequentially(text)
        expect(table.count).to_have_text(re.compile(rf"^[1-9]\d* of {RUNS} runs$"))
        expect(table.rows.first).to_be_visible()
        found = table.column(column)
        assert found and [each for each in found if not re.search(shows, each)] == [], text
        table.wait_for_link(q=text)


def test_expression_that_is_wrong_is_explained(table: RunsTable) -> None:
    """Beside the field; what was listed before stays."""
    table.open()
    for text, explained in WRONG.items():
        table.filter.fill(text)
        expect(table.note).to_contain_text(explained)
        expect(table.filter).to_have_attribute("aria-invalid", "true")
        expect(table.count).to_have_text(f"{RUNS} runs")


def test_sorting_by_any_column_puts_runs_without_a_value_last(table: RunsTable) -> None:
    """By metric and by setting, both ways; the link holds it."""
    table.open()
    expect(table.page.get_by_role("grid")).to_have_attribute("aria-rowcount", str(RUNS + 1))
    for name in ("val/accuracy", "lr"):
        for arrow, key in (("ascending", False), ("descending", True)):
            table.head(name).click()
            expect(table.page.locator(f"th[aria-sort={arrow}]")).to_contain_text(name)
            found = [float(each) for each in table.column(name)]
            assert found == sorted(found, reverse=key)
    assert table.parameters()["sort"] == ["-config::lr"]


def test_groups_have_counts_means_and_fold(table: RunsTable) -> None:
    """By a setting; folded groups are part of the link."""
    table.open()
    table.page.get_by_label("Group by").select_option("config::lr")
    expect(table.groups.first).to_contain_text("lr = 0.0003")
    expect(table.groups.first.locator(".count")).to_have_text(str(RUNS // 4))
    table.page.get_by_role("button", name="Fold all").click()
    expect(table.groups).to_have_count(4)
    expect(table.rows).to_have_count(0)
    assert re.search(r"0\.\d+\n0\.\d+–0\.\d+", table.groups.first.inner_text())
    table.page.get_by_role("button", name="Unfold lr = 0.01").click()
    expect(table.rows.first).to_be_visible()
    table.page.reload()
    expect(table.groups).to_have_count(4)
    expect(table.rows.first).to_be_visible()


def test_columns_are_searched_chosen_and_put_in_order(table: RunsTable) -> None:
    """Columns are chosen from all settings and metrics that runs have; the link holds them."""
    table.open().page.get_by_role("button", name="Columns").click()
    dialog = table.page.get_by_role("dialog", name="Columns")
    dialog.get_by_label("Search columns").fill("decay")
    dialog.get_by_label("optimizer::weight_decay").check()
    dialog.get_by_role("button", name="Remove: Tags").click()
    for _ in range(3):
        dialog.get_by_role("button", name="Up: optimizer.weight_decay").click()
    dialog.get_by_role("button", name="Close").click()
    heads = [text for text in table.page.locator("table.runs thead th").all_inner_texts() if text]
    assert "Tags" not in heads
    assert heads.index("optimizer.weight_decay") == len(heads) - 4
    expect(table.page.locator("table.runs")).to_contain_text("0.05")
    table.page.reload()
    expect(table.head("optimizer.weight_decay")).to_be_visible()


def test_state_verdict_drops_and_lag_are_in_sight(table: RunsTable, store: Store) -> None:
    """A run that stands still has the words of its observer, and each live run how long nothing came."""
    store.writer.write([run_of(2, time.time_ns())])  # a moment ago
    table.open("?q=state%3Dstalled")
    expect(table.rows).to_have_count(1)
    state = table.rows.first.locator(".status")
    expect(state).to_contain_text("stalled")
    expect(state).to_have_attribute("title", re.compile("rank 3 waits in all_reduce"))
    assert re.fullmatch(r"\d+ (s|min) ago", table.column("Last data")[0])


def test_selected_runs_are_charted_and_compared(table: RunsTable) -> None:
    """By click, with Shift a range, and with the keyboard."""
    table.open()
    boxes = table.rows.locator("input")
    boxes.nth(1).click()
    boxes.nth(4).click(modifiers=["Shift"])
    bar = table.page.get_by_role("region", name="Selected runs")
    expect(bar.locator(".count")).to_have_text("4 selected")
    table.page.get_by_role("grid").focus()
    for key in ("ArrowDown", "Space", "Shift+ArrowDown", "Shift+ArrowDown"):
        table.page.keyboard.press(key)
    expect(bar.locator(".count")).to_have_text("7 selected")
    for name in ("Charts", "Compare"):
        href = bar.get_by_role("link", name=name).get_attribute("href") or ""
        assert href.startswith(f"#/{name.lower()}?run=") and href.count("run=") == 7
    table.page.keyboard.press("Escape")
    expect(bar).to_be_hidden()


def test_keys_reach_everything(table: RunsTable) -> None:
    """`/` filter, arrows, Enter opens the run, `?` lists the keys."""
    table.open()
    table.page.keyboard.press("?")
    expect(table.page.get_by_role("dialog", name="Keys and filter")).to_contain_text("go to the filter")
    table.page.keyboard.press("Escape")
    table.page.keyboard.press("/")
    table.page.keyboard.type("vit-base")
    table.page.keyboard.press("ArrowDown")
    table.page.keyboard.press("End")
    active = table.page.locator("table.runs tr.active")
    expect(active).to_be_in_viewport()
    expect(active).to_contain_text("vit-base")
    name = active.get_by_role("link").get_attribute("href") or ""
    table.page.keyboard.press("Enter")
    table.page.wait_for_url(f"**/{name}*")


def test_all_runs_are_selected_by_a_key_after_a_click_on_a_box(table: RunsTable) -> None:
    """Keys go on from the row that was clicked, also where the rows are made anew meanwhile."""
    table.open("?q=vit-base")
    table.rows.first.get_by_role("checkbox").click()
    table.page.keyboard.press("Control+a")
    expect(table.page.get_by_label("Select all runs that are listed")).to_be_checked()


def test_saved_view_comes_back_by_its_name(table: RunsTable) -> None:
    """Filter, order and groups; also after a reload."""
    page = table.open("?q=tag%3Dbaseline&sort=name&by=group").page
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of this view").fill("my <b>view</b>")
    page.get_by_role("button", name="Save").click()
    page.keyboard.press("Escape")
    table.open().page.reload()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="my <b>view</b>", exact=True).click()
    expect(table.filter).to_have_value("tag=baseline")
    assert table.parameters() == {"q": ["tag=baseline"], "sort": ["name"], "by": ["group"]}


def test_line_of_a_run_is_the_same_everywhere_and_can_be_chosen(table: RunsTable) -> None:
    """It follows from the id, and the user's choice from then on."""
    table.open()
    line = table.rows.first.locator(".swatch")
    before = line.get_attribute("class")
    table.page.reload()
    expect(line).to_have_attribute("class", before or "")
    table.rows.first.get_by_role("button", name="Change the line").click()
    table.page.get_by_role("button", name="Line 7", exact=True).click()
    expect(line).to_have_attribute("class", "swatch series-6")
    table.page.reload()
    expect(line).to_have_attribute("class", "swatch series-6")


def test_only_rows_in_sight_are_in_the_document(table: RunsTable) -> None:
    """The others are counted for those who cannot see the table."""
    table.open()
    grid = table.page.get_by_role("grid")
    expect(grid).to_have_attribute("aria-rowcount", str(RUNS + 1))
    assert table.rows.count() < 60
    table.page.locator(".scroll").evaluate("(box) => (box.scrollTop = box.scrollHeight)")
    expect(table.page.locator(f"tr[aria-rowindex='{RUNS + 1}']")).to_be_in_viewport()
    assert table.rows.count() < 60


def test_usual_columns_need_no_sideways_scroll(table: RunsTable) -> None:
    """At the widths of a laptop and of a screen; of many columns the name stays in sight."""
    table.open()
    scroll = table.page.locator(".scroll")
    expect(table.head("model.layers")).to_be_visible()
    for width in (1280, 1920):
        table.page.set_viewport_size({"width": width, "height": 900})
        table.page.wait_for_function(
            "() => document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth"
        )
        assert scroll.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    names = "project records points bytes attempts reason id name state tags group created duration seen lost"
    table.open("?" + "&".join(f"col={name}" for name in names.split()))
    scroll.evaluate("(box) => (box.scrollLeft = 1000)")
    expect(table.rows.first.get_by_role("link")).to_be_in_viewport()


def test_pictures_of_the_table_have_one_line_of_controls(table: RunsTable, tmp_path: Path) -> None:
    """At both widths and in both themes: controls in a line, heads above their cells, all rows of one height."""
    page = table.open("?by=group").page
    table.rows.locator("input").nth(2).click()
    for name in pictures.take(page, "runs", tmp_path):
        tops = page.locator(".toolbar > *:visible").evaluate_all(
            "(all) => all.map((each) => each.offsetHeight)"
        )
        assert max(tops) < 40, name
        assert page.locator(".toolbar").evaluate("(bar) => bar.offsetHeight") < 60, name
        boxes = "(cells) => cells.map((cell) => [cell.offsetLeft, cell.offsetWidth])"
        heads = page.locator("table.runs thead tr > *").evaluate_all(boxes)
        assert table.rows.first.locator("> *").evaluate_all(boxes) == heads, name
        heights = "(rows) => [...new Set(rows.map((row) => row.offsetHeight))]"
        assert page.locator("table.runs tbody tr:not(.spacer)").evaluate_all(heights) == [30], name


def test_new_runs_and_states_come_without_touching_the_view(table: RunsTable, store: Store) -> None:
    """A run that begins is there, one that ends shows it; filter, scroll and selection stay."""
    page = table.open("?q=resnet50-adamw&sort=-created").page
    expect(table.rows.first).to_be_visible()
    before = int((table.count.inner_text()).split()[0])
    table.rows.locator("input").nth(3).click()
    page.locator(".scroll").evaluate("(box) => (box.scrollTop = 95)")
    now_ns = time.time_ns()
    store.writer.write(
        [run_of(100_000, now_ns, state="running", created_ns=now_ns, name="resnet50-adamw-new")]
    )
    store.writer.write([run_of(3, now_ns, state="failed", reason="it was stopped")])
    expect(table.count).to_have_text(f"{before + 1} of {RUNS + 1} runs")
    expect(table.rows.filter(has_text="it was stopped")).to_have_count(1)
    assert page.locator(".scroll").evaluate("(box) => box.scrollTop") == 95
    expect(page.get_by_role("region", name="Selected runs").locator(".count")).to_have_text("1 selected")
    assert table.parameters()["q"] == ["resnet50-adamw"]
    store.writer.delete(run_of(19, now_ns).run, now_ns)
    expect(table.count).to_have_text(f"{before} of {RUNS} runs")
    store.writer.undelete(run_of(19, now_ns).run)
    store.writer.delete(run_of(100_000, now_ns).run, now_ns)


def test_a_hidden_tab_asks_nothing_and_catches_up_once(browser: Browser, url: str, store: Store) -> None:
    """A minute passes; one list and one stream bring what changed meanwhile."""
    with watching(browser) as watched:
        page = watched.page
        page.clock.install()
        table = RunsTable(page, url).open("?q=resnet50-adamw")
        expect(table.rows.first).to_be_visible()
        settled(watched)
        set_hidden(page, True)
        watched.requests.clear()
        now_ns = time.time_ns()
        store.writer.write([run_of(5, now_ns, state="failed", reason="while hidden")])
        page.clock.fast_forward(60_000)
        assert [each.url for each in watched.requests] == []
        set_hidden(page, False)
        expect(table.rows.filter(has_text="while hidden")).to_have_count(1)
        asked = [urlsplit(each.url) for each in watched.requests]
        assert [each.path for each in asked].count("/api/v1/stream") == 1
        assert len([each for each in asked if "limit=200&" in each.query]) == 1
    store.writer.write([run_of(5, now_ns)])


def test_filter_that_matches_nothing_offers_to_clear_it(table: RunsTable) -> None:
    """An empty table says why it is."""
    table.open("?q=nowhere")
    expect(table.page.get_by_role("heading", name="No run matches")).to_be_visible()
    table.page.get_by_role("button", name="Clear the filter").click()
    expect(table.count).to_have_text(f"{RUNS} runs")


def test_store_without_runs_teaches_how_to_log_one(watched: Watched, tmp_path: Path) -> None:
    """Three lines of Python, and the command that sends a run here, also where the collector's address comes late."""
    page = watched.page
    late: list[Route] = []
    page.route("**/api/v1/info", lambda route: late.append(route))
    facts = {"grpc": "grpc://127.0.0.1:7788"}
    with (
        made_store(tmp_path / "data") as store,
        serving(backing(store, check=lambda token: EVERYBODY, facts=lambda: facts)) as url,
    ):
        page.goto(url)
        expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        expect(page.locator("pre").first).to_contain_text("logclient.init(")
        late[0].continue_()
        expect(page.locator("pre").last).to_contain_text("LOGCLIENT_SERVER=grpc://127.0.0.1:7788")
        store.writer.write([run_of(1, time.time_ns())])
        expect(page.get_by_role("link", name=re.compile("resnet50"))).to_be_visible()
        page.goto("about:blank")


def test_link_of_a_view_works_in_another_browser(watched: Watched, url: str) -> None:
    """All of it is in the address."""
    table = RunsTable(watched.page, url).open(
        "?q=state%3Dfinished&sort=last%3A%3Atrain%2Floss&col=name&col=last%3A%3Atrain%2Floss"
    )
    expect(table.filter).to_have_value("state=finished")
    found = [float(each) for each in table.column("train/loss")]
    assert found and found == sorted(found)
    assert "state=finished" in unquote(watched.page.url)


def test_groups_are_over_all_runs_where_more_are_there_than_are_loaded(watched: Watched, url: str) -> None:
    """Their counts and means are the store's; groups of which no run is loaded are there, too, and a filter holds."""
    page = watched.page

    def load_few(route: Route) -> None:
        answer = route.fetch()
        text, count = re.subn(r"(MAX_LOADED|FIRST_PAGE) = \d+;", r"\1 = 3;", answer.text())
        assert count == 2
        route.fulfill(response=answer, body=text)

    page.route("**/runs/model.js", load_few)
    table = RunsTable(page, url)
    lr, loss = "config%3A%3Alr", "last%3A%3Atrain%2Floss"
    page.goto(f"{url}/#/runs?by={lr}&fold=all&col={loss}")
    expect(table.count).to_have_text(f"3 of {RUNS} runs")
    expect(table.groups).to_have_count(4)
    expect(table.groups.locator(".count")).to_have_text([str(RUNS // 4)] * 4)
    means = [each.split("\n")[0] for each in table.column_of_groups("train/loss")]
    assert len(means) == 4 and all(re.fullmatch(r"0\.\d+", each) for each in means), means
    expect(table.groups.first.locator("td.number").last).to_have_attribute(
        "title", re.compile(rf"^Mean of {RUNS // 4} runs")
    )
    table.filter.fill("config.seed=1")
    expect(table.groups.locator(".count")).to_have_text([str(RUNS // 20)] * 4)
    table.filter.fill("dropped>=0")
    expect(table.note).to_contain_text("Groups: over the 3 runs that are loaded.")
    page.goto("about:blank")


def test_more_runs_than_are_loaded_are_filtered_and_sorted_by_the_collector(
    watched: Watched, tmp_path: Path
) -> None:
    """All of 5,300 runs are found and counted, and what is looked up in a part of them says so."""
    now_ns = time.time_ns()
    with made_store(tmp_path / "data") as store:
        for first in range(0, 5300, 500):
            page = [
                run_of(number, now_ns, state="finished") for number in range(first, min(5300, first + 500))
            ]
            store.writer.write([replace(parcel, batches=()) for parcel in page])
        oldest = run_of(5299, now_ns).description
        assert oldest is not None
        with serving(backing(store, check=lambda token: EVERYBODY)) as url:
            table = RunsTable(watched.page, url)
            table.page.goto(url)
            expect(table.count).to_have_text("5,000 of 5,300 runs")
            table.head("Started").click()
            expect(table.rows.first).to_contain_text(oldest.name)
            table.filter.fill("config.seed=4 name~mlp-mixer")
            expect(table.count).to_have_text(re.compile(r"^26\d runs$"))
            table.filter.fill("dropped>0")
            expect(table.note).to_contain_text(
                "dropped>0: looked up in the 5,000 runs that are loaded, of 5,300"
            )
            table.filter.fill("")
            expect(table.count).to_have_text("5,000 of 5,300 runs")
            table.page.goto("about:blank")
