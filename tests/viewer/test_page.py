"""The page in a headless browser: what it draws, how it answers, and that it is harmless and alone."""

import re
import time

import pytest
from browser import Browser, find_browser
from made_snapshot import make_snapshot

from accelrt.tools.viewer.html_page import make_page, write_page

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed; apt-get install chromium"),
]
EVENTS = 100_000
GENEROUS = 30  # seconds; a slow machine is no defect of the page
DRAWN = "document.body && Number(document.body.dataset.drawn) > 0"
ROWS = "document.querySelectorAll('#table .row').length"
TABLE_TEXT = "document.querySelector('#table-text').textContent"
DETAILS = "document.querySelector('#details').innerText"
HOSTILE = "</script><script>window.hurt=1</script><img src=x onerror='window.hurt=1'>${window.hurt=1}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "large.html"
    write_page(make_snapshot(EVENTS), path)
    return path.as_uri()


@pytest.fixture
def opened(browser, page):
    """The page, drawn; at the end it has said nothing on the console and fetched nothing."""
    browser.open(page)
    browser.wait_for(DRAWN)
    yield browser
    assert browser.messages == []
    assert browser.requests == [page]


def settle(browser):
    """Waits until what was asked for is drawn."""
    browser.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
    )


def show(browser, tab):
    browser.click(*browser.centre(f"#tab-{tab}"))
    settle(browser)


def spot(browser, across=0.5, from_bottom=0.1):
    """A place in the timeline's plot."""
    return browser.evaluate(
        "(() => { const t = document.querySelector('#timeline'); t.scrollIntoView({block: 'center'});"
        " const b = t.getBoundingClientRect(), v = accelrtViewer.timeline;"
        f" return [b.x + 74 + v.width * {across}, b.y + v.top + v.height * (1 - {from_bottom})]; }})()"
    )


def test_a_hundred_thousand_events_are_drawn(browser, page, record_property):
    began = time.monotonic()
    browser.open(page)
    browser.wait_for(DRAWN, GENEROUS)
    record_property("seconds", round(time.monotonic() - began, 3))
    assert browser.evaluate("accelrtViewer.device.count") >= EVENTS
    assert browser.evaluate("accelrtViewer.timeline.drawn") > 10_000
    assert browser.evaluate("accelrtViewer.map.drawn") > 100
    assert browser.messages == []


def test_hovering_shows_the_stack_and_a_click_pins_it(opened):
    opened.mouse("mouseMoved", *spot(opened))
    settle(opened)
    said = opened.evaluate("document.querySelector('#tip').innerText")
    for expected in ("Requested: ", "Stream: 0", "Pool: default pool", "Tag: ", "train_step", "train.py:88"):
        assert expected in said
    opened.click(*spot(opened))
    opened.mouse("mouseMoved", 5, 5)
    settle(opened)
    pinned = opened.evaluate(DETAILS)
    assert "Stack, innermost first" in pinned
    assert "/home/user/model/train.py:160" in pinned
    opened.mouse("mouseMoved", *spot(opened, 0.2, 0.5))
    settle(opened)
    assert opened.evaluate(DETAILS) == pinned
    opened.click(*opened.centre("#details-buttons button"))
    settle(opened)
    assert opened.evaluate("accelrtViewer.pinned") is None


def test_search_narrows_the_table(opened):
    show(opened, "table")
    opened.click(*opened.centre("#only-live"))
    settle(opened)
    all_of_them = opened.evaluate("accelrtViewer.table.table.found.length")
    assert all_of_them == opened.evaluate("accelrtViewer.device.allocationCount") > 30_000
    assert 10 < opened.evaluate(ROWS) < 80  # those in view
    opened.click(*opened.centre("#search"))
    opened.type("attention.py activations")
    opened.wait_for(f"accelrtViewer.table.table.found.length < {all_of_them}")
    narrowed = opened.evaluate("accelrtViewer.table.table.found.length")
    assert 0 < narrowed < all_of_them
    tags = opened.evaluate(
        "[...new Set([...accelrtViewer.table.table.found].map((each) => accelrtViewer.device.tagOf(each)))]"
    )
    assert tags == ["activations"]
    opened.type(" nowhere")
    opened.wait_for(f"{TABLE_TEXT}.startsWith('0 allocations')")
    assert opened.evaluate(ROWS) == 0


def test_columns_sort_both_ways(opened):
    show(opened, "table")
    sizes = "[...accelrtViewer.table.table.found].map((each) => accelrtViewer.device.allocations.size[each])"
    assert opened.evaluate(sizes) == sorted(opened.evaluate(sizes), reverse=True)
    opened.click(*opened.centre("#table .head button"))
    settle(opened)
    assert opened.evaluate(sizes) == sorted(opened.evaluate(sizes))
    assert (
        opened.evaluate("document.querySelector('#table .head div').getAttribute('aria-sort')") == "ascending"
    )


def test_the_slider_moves_the_map(opened):
    text = "document.querySelector('#map-text').textContent"
    at_peak = opened.evaluate(text)
    slide = (
        "(() => {{ const s = document.querySelector('#moment'); s.value = {};"
        " s.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
    )
    opened.evaluate(slide.format(-1))
    settle(opened)
    assert opened.evaluate(text) == "nothing is mapped at this moment"
    opened.evaluate(slide.format(40))
    settle(opened)
    early = opened.evaluate(text)
    assert early not in (at_peak, "nothing is mapped at this moment")
    mapped = "accelrtViewer.map.segments.reduce((sum, each) => sum + each.size, 0)"
    assert opened.evaluate(mapped) == opened.evaluate("accelrtViewer.device.reservedAt(40)")
    blocks = opened.evaluate("accelrtViewer.map.blocks.length")
    assert blocks == opened.evaluate("accelrtViewer.device.liveAt(40).length")


def test_blocks_and_free_bytes_of_the_map_are_told(opened):
    opened.evaluate("document.querySelector('#map-scroll').scrollIntoView(), 1")
    where = opened.evaluate(
        "(() => { const b = document.querySelector('#map').getBoundingClientRect();"
        " const l = accelrtViewer.map.lines.find((each) => each.pieces.length);"
        " return [b.x + l.pieces[0].x + 4, b.y + l.y + 6]; })()"
    )
    opened.click(*where)
    settle(opened)
    assert "Requested" in opened.evaluate(DETAILS)
    hole = opened.evaluate("accelrtViewer.map.hole(accelrtViewer.map.segments[0], 4096, 8192).hole.size")
    assert hole == 4096
    opened.evaluate("accelrtViewer.pin(accelrtViewer.map.hole(accelrtViewer.map.segments[0], 4096, 8192))")
    settle(opened)
    assert "4.00 KiB free" in opened.evaluate(DETAILS)


@pytest.mark.parametrize("by", ["stack", "tag", "stream", "pool"])
def test_the_flame_graph_holds_all_live_bytes(opened, by):
    show(opened, "flame")
    opened.evaluate(
        f"(() => {{ const s = document.querySelector('#flame-by'); s.value = '{by}';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    settle(opened)
    assert opened.evaluate("accelrtViewer.flame.root.size") == opened.evaluate(
        "accelrtViewer.device.live[accelrtViewer.moment + 1]"
    )
    labels = opened.evaluate("accelrtViewer.flame.boxes.map((box) => box.node.label)")
    expected = {"stack": "<module>", "tag": "optimizer", "stream": "stream 0", "pool": "pool (0, 7)"}
    assert expected[by] in labels


def test_a_click_in_the_flame_graph_zooms(opened):
    show(opened, "flame")
    x, _ = opened.centre("#flame")
    box = opened.evaluate("document.querySelector('#flame').getBoundingClientRect().y")
    opened.click(x, box + 4.5 * 19)
    settle(opened)
    assert opened.evaluate("accelrtViewer.flame.path.length") == 4
    opened.click(*opened.centre("#flame-root"))
    settle(opened)
    assert opened.evaluate("accelrtViewer.flame.path.length") == 0


def test_pools_and_streams_add_up(opened):
    show(opened, "groups")
    said = opened.evaluate("document.querySelector('#groups').innerText")
    for expected in ("default pool", "pool (0, 7)", "stream 0x55d0c0de0010", "kv cache", "Largest free"):
        assert expected in said


def test_events_are_listed_and_go_to_their_moment(opened):
    show(opened, "events")
    opened.click(*opened.centre("#event-search"))
    opened.type("oom")
    opened.wait_for("accelrtViewer.events.table.found.length < 20")
    count = opened.evaluate("accelrtViewer.events.table.found.length")
    assert count == opened.evaluate("accelrtViewer.device.oomCount") > 0
    opened.click(*opened.centre("#events .row"))
    settle(opened)
    assert opened.evaluate("accelrtViewer.moment") == opened.evaluate("accelrtViewer.events.table.found[0]")
    assert "gather_logits" in opened.evaluate(DETAILS)


def test_keys_reach_everything(opened):
    opened.evaluate("document.querySelector('#timeline').focus()")
    opened.press("+")
    settle(opened)
    assert opened.evaluate("accelrtViewer.timeline.to - accelrtViewer.timeline.from") < EVENTS
    moment = opened.evaluate("accelrtViewer.moment")
    opened.press(".")
    opened.press("ArrowDown")
    opened.press("Enter")
    settle(opened)
    assert opened.evaluate("accelrtViewer.moment") == moment + 1
    assert "Requested" in opened.evaluate(DETAILS)
    opened.evaluate("document.querySelector('#tab-map').focus()")
    for tab in ("flame", "table", "groups", "events"):
        opened.press("ArrowRight")
        assert opened.evaluate("accelrtViewer.tab") == tab
    reached = opened.evaluate("document.activeElement.id")
    assert reached == "tab-events"


def test_dragging_pans_and_the_wheel_zooms(opened):
    x, y = spot(opened)
    opened.mouse("mouseWheel", x, y, deltaX=0, deltaY=-800)
    settle(opened)
    first, last = opened.evaluate("[accelrtViewer.timeline.from, accelrtViewer.timeline.to]")
    assert last - first < EVENTS / 2
    opened.mouse("mousePressed", x, y, button="left", clickCount=1)
    opened.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
    opened.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)
    settle(opened)
    assert opened.evaluate("accelrtViewer.timeline.from") > first
    assert opened.evaluate("accelrtViewer.pinned") is None


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window(browser, page, width, dark):
    browser.open(page, width, 844, dark)
    browser.wait_for(DRAWN)
    for tab in ("map", "flame", "table", "groups", "events"):
        show(browser, tab)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) is dark
    assert browser.messages == []


def test_texts_of_a_snapshot_do_nothing(browser, tmp_path):
    snapshot = make_snapshot(500)
    for device in snapshot["device_traces"]:
        for event in device:
            event["tag"] = HOSTILE
            event["frames"] = [{"filename": HOSTILE, "line": 1, "name": HOSTILE}]
    for mark in snapshot["external_annotations"]:
        mark["name"] = HOSTILE
    snapshot["allocator_settings"] = {HOSTILE: HOSTILE}
    path = tmp_path / "hostile.html"
    write_page(snapshot, path, HOSTILE)
    browser.open(path.as_uri())
    browser.wait_for(DRAWN)
    browser.mouse("mouseMoved", *spot(browser))
    browser.click(*spot(browser))
    for tab in ("map", "flame", "table", "groups", "events"):
        show(browser, tab)
    assert HOSTILE in browser.evaluate("document.title")
    assert HOSTILE in browser.evaluate(DETAILS)
    assert browser.evaluate("window.hurt === undefined && document.querySelector('img') === null")
    assert browser.messages == []
    assert browser.requests == [path.as_uri()]


def test_a_page_that_would_fetch_is_stopped(browser, page):
    browser.open(page)
    browser.wait_for(DRAWN)
    stopped = browser.evaluate("fetch('https://example.invalid/').then(() => 'fetched', () => 'stopped')")
    assert stopped == "stopped"
    assert any("Content Security Policy" in text for text in browser.messages)


@pytest.mark.parametrize("empty", [{"segments": [], "device_traces": []}, {"segments": []}])
def test_an_empty_snapshot_has_a_page_too(browser, tmp_path, empty):
    path = tmp_path / "empty.html"
    write_page(empty, path)
    browser.open(path.as_uri())
    browser.wait_for(DRAWN)
    for tab in ("map", "flame", "table", "groups", "events"):
        show(browser, tab)
    assert browser.messages == []


def test_torchs_snapshots_and_several_devices_are_shown(browser, tmp_path):
    snapshot = make_snapshot(3000, ours=False)
    snapshot["device_traces"].append(snapshot["device_traces"][0][:600])
    path = tmp_path / "torch.html"
    write_page(snapshot, path)
    browser.open(path.as_uri())
    browser.wait_for(DRAWN)
    browser.evaluate(
        "(() => { const s = document.querySelector('#device'); s.value = '1';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    settle(browser)
    assert browser.evaluate("accelrtViewer.device.count") == 600
    for tab in ("map", "flame", "table", "groups", "events"):
        show(browser, tab)
    assert browser.messages == []


def test_a_damaged_page_says_so(browser, tmp_path):
    path = tmp_path / "damaged.html"
    page = make_page(make_snapshot(500), "x")
    path.write_text(re.sub(r'(id="data">.{400})[^<]*', r"\1", page))
    browser.open(path.as_uri())
    browser.wait_for("document.querySelector('#problem') && !document.querySelector('#problem').hidden")
    assert "cannot be shown" in browser.evaluate("document.querySelector('#problem').textContent")


def test_colours_are_by_tag_where_there_are_tags(browser, page, tmp_path):
    browser.open(page)
    browser.wait_for(DRAWN)
    assert browser.evaluate("document.querySelector('#colour').value") == "tag"
    legend = browser.evaluate("document.querySelector('#legend').innerText")
    assert "activations" in legend
    untagged = make_snapshot(500)
    for device in untagged["device_traces"]:
        for event in device:
            event.pop("tag", None)
    for segment in untagged["segments"]:
        for block in segment["blocks"]:
            block.pop("tag", None)
    path = tmp_path / "untagged.html"
    write_page(untagged, path)
    browser.open(path.as_uri())
    browser.wait_for(DRAWN)
    assert browser.evaluate("document.querySelector('#colour').value") == "frame"


HEADS = "[...document.querySelectorAll('#{} .head button')].map((each) => each.textContent.split(' ')[0])"
CELLS = (
    "[...document.querySelectorAll('#{} .row')[0].children].map((each) => each.getBoundingClientRect().right)"
)


@pytest.mark.parametrize(
    ("tab", "columns"), [("table", ["Size", "Tag", "Stack"]), ("events", ["Event", "Action", "Tag", "Stack"])]
)
def test_a_phone_keeps_tag_and_stack_within_its_width(browser, page, tab, columns):
    browser.open(page, 390, 844)
    browser.wait_for(DRAWN)
    show(browser, tab)
    assert browser.evaluate(HEADS.format(tab)) == columns
    assert max(browser.evaluate(CELLS.format(tab))) <= 390
    browser.click(*browser.centre(f"#{tab} .head div:nth-child({len(columns)}) button"))  # by stack
    settle(browser)
    order = f"document.querySelector('#{tab} .head div:nth-child({len(columns)})').getAttribute('aria-sort')"
    assert browser.evaluate(order) == "ascending"
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=1280, height=844, deviceScaleFactor=1, mobile=False
    )
    settle(browser)
    assert len(browser.evaluate(HEADS.format(tab))) > 6
    sorted_by = f"[...document.querySelectorAll('#{tab} .head div')].map((e) => e.getAttribute('aria-sort'))"
    assert browser.evaluate(sorted_by).index("ascending") == len(browser.evaluate(HEADS.format(tab))) - 1
    assert browser.messages == []


def test_the_difference_of_two_snapshots_is_shown_first(browser, tmp_path):
    before = make_snapshot(500)
    after = make_snapshot(500)
    frames = [{"filename": "/app/model.py", "line": 7, "name": HOSTILE}]
    new = {"address": 0xABC000, "size": 5 << 20, "requested_size": 5 << 20, "state": "active_allocated"}
    after["segments"][0]["blocks"].append(new | {"frames": frames, "tag": "leaked"})
    path = tmp_path / "after.html"
    write_page(after, path, since=before)
    for width in (1280, 390):
        browser.open(path.as_uri(), width, 844)
        browser.wait_for(DRAWN)
        assert browser.evaluate("accelrtViewer.tab") == "difference"
        said = browser.evaluate("document.querySelector('#difference').innerText")
        for words in ("Compared with the earlier snapshot", "+5.00 MiB", "leaked", "0xabc000", "model.py:7"):
            assert words in said
        assert "1 block of 5.00 MiB came, 0 blocks of 0 B went." in said
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        show(browser, "map")
        assert browser.evaluate("document.querySelector('#view-difference').hidden")
    assert browser.evaluate("window.hurt === undefined")
    assert browser.messages == []


def test_a_page_of_one_snapshot_has_no_difference(opened):
    assert opened.evaluate("document.querySelector('#tab-difference').hidden")
    assert opened.evaluate("accelrtViewer.tab") == "map"
