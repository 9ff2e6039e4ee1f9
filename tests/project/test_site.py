"""The site as a browser shows it: nothing is cut off or too faint on a phone or a desk; no link is dead.

It is built here unless ACCELRT_TEST_SITE names a folder where it is; accelrt[docs] and a Chromium are needed.
"""

import functools
import html.parser
import http.server
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path

import pytest
from browser import Browser, find_browser
from cli_command import ROOT

pytestmark = pytest.mark.own_process
NEEDED = ("sphinx", "furo", "myst_parser")
PAGES = (
    "",
    "start/ten_minutes/",
    "guide/graphs/",
    "guide/leaks/",
    "guide/processes/",
    "guide/allocator_in_pictures/",
    "coming_from/cuda_core_tests/",
    "coming_from/torch/",
    "torch_names/",
    "memory/",
    "reference/settings/",
    "reference/environment/",
    "reference/api/streams/",
    "genindex/",
)
# What sticks out of the page but for lines of code, which are scrolled, and tables that would have to be.
CUT_OFF = """(() => {
    const width = document.documentElement.clientWidth, found = [];
    for (const each of document.querySelectorAll("article *"))
        if (each.getBoundingClientRect().right > width + 1 && !each.closest("pre, .table-wrapper"))
            found.push("sticks out: " + each.tagName + " " + each.textContent.slice(0, 60));
    for (const each of document.querySelectorAll(".table-wrapper"))
        if (each.scrollWidth > each.clientWidth + 1) found.push("a table: " + each.textContent.slice(0, 60));
    if (document.querySelector("table") && /<\\w+>/.test(document.querySelector("table").textContent))
        found.push("markup is shown");
    for (const each of document.images) if (!each.naturalWidth) found.push("no picture: " + each.src);
    return found;
})()"""
# Texts whose contrast is below what WCAG asks of level AA.
FAINT = """(() => {
    const part = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const behind = (each) => {
        for (; each; each = each.parentElement) {
            const color = parse(getComputedStyle(each).backgroundColor);
            if (color.length < 4 || color[3] > 0.5) return color;
        }
        return [255, 255, 255];
    };
    const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const each = texts.currentNode.parentElement, box = each.getBoundingClientRect();
        const style = getComputedStyle(each);
        if (!texts.currentNode.textContent.trim() || !box.width || style.visibility == "hidden") continue;
        const [dark, bright] = [light(behind(each)), light(parse(style.color))].sort((a, b) => a - b);
        if (bright + 0.05 < 4.5 * (dark + 0.05)) found.add(each.tagName + " " + each.textContent);
    }
    return [...found];
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    if os.environ.get("ACCELRT_TEST_SITE"):
        return Path(os.environ["ACCELRT_TEST_SITE"])
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not installed; accelrt[docs] brings it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "dirhtml", "docs", str(folder)]
    command += ["-d", str(tmp_path_factory.mktemp("doctrees"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing, where each request is told of otherwise."""


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        pytest.skip("no Chromium is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Browser(folder)
        yield started
        started.close()


def show(browser, url, width, dark=False):
    browser.open(url, width=width, dark=dark)
    browser.wait_for(f'location.href == "{url}" && document.readyState == "complete"')


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_of_a_page_is_cut_off(browser, address, page, width):
    show(browser, address + page, width)
    assert browser.evaluate(CUT_OFF) == []


def test_no_page_is_wider_than_a_phone(browser, site, address):
    wide = {}
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix().removesuffix("index.html")
        show(browser, address + page, 390)
        cut_off = [each for each in browser.evaluate(CUT_OFF) if not each.startswith("a table: ")]
        if cut_off or browser.evaluate("document.scrollingElement.scrollWidth") > 390:
            wide[page] = cut_off
    assert wide == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_every_text_of_a_page_can_be_read(browser, address, page, dark):
    show(browser, address + page, 1280, dark)
    assert browser.evaluate(FAINT) == []


def test_what_is_cut_off_or_faint_is_seen(browser, address):
    show(browser, address, 390)
    add = 'document.querySelector("article").insertAdjacentHTML("beforeend", `%s`)'
    browser.evaluate(add % '<p style="width: 900px; color: #bbb; background: #fff">a faint line</p>')
    assert browser.evaluate(CUT_OFF) == ["sticks out: P a faint line"]
    assert browser.evaluate(FAINT) == ["P a faint line"]


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ("out of memory", "Out of memory: what now"),
        ("fork", "Threads, forks, asyncio, signals and the exit"),
        ("MemPool", "accelrt.MemPool"),
        ("capture error", "What may not stand in a capture"),
        ("what is promised", "What stays"),
        ("install", "Install: what it needs, and what has been run"),
        ("exception retry", "Which exception means what"),
        ("leak", "Memory grows or leaks: what now"),
    ],
)
def test_a_search_finds_the_page_that_answers_first(browser, address, question, title):
    show(browser, f"{address}search/?q={urllib.parse.quote_plus(question)}", 1280)
    results = 'document.querySelectorAll("#search-results li a")'
    browser.wait_for(f"{results}.length > 3")
    assert browser.evaluate(f"{results}[0].textContent") == title


class Page(html.parser.HTMLParser):
    """The ids of a page, and where its links lead."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif value and (tag, name) in (
                ("a", "href"),
                ("img", "src"),
                ("link", "href"),
                ("script", "src"),
            ):
                self.links.append(value)


def dead_links(site):
    """(page, link) of each link of a built site that leads nowhere in it; what leads out is not asked."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for page, parsed in pages.items():
        for link in parsed.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = (
                Path(os.path.normpath(page.parent / urllib.parse.unquote(parts.path))) if parts.path else page
            )
            target = path / "index.html" if path.is_dir() else path
            fragment = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (fragment and target in pages and fragment not in pages[target].ids):
                yield str(page.relative_to(site)), link


def test_every_link_of_the_site_leads_somewhere(site):
    assert len(list(site.rglob("*.html"))) > 90
    assert list(dead_links(site)) == []


def test_a_dead_link_is_seen(tmp_path):
    (tmp_path / "index.html").write_text('<p id="x"><a href="#x"></a><a href="#y"></a><img src="no.png">')
    assert list(dead_links(tmp_path)) == [("index.html", "#y"), ("index.html", "no.png")]
