"""The site builds without a warning, has a page per method, loads nothing from other hosts, and its links work."""

import contextlib
import functools
import html
import http.server
import importlib
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import browser as browsing
import fedspam
from fedspam.methods import METHODS, table
from fedspam.methods.when import FAMILIES
from rooms import ROOMS

pytestmark = pytest.mark.slow
for _package in ("properdocs", "material", "mkdocstrings", "latex2mathml"):
    if importlib.util.find_spec(_package) is None:
        pytest.skip(f"{_package} is not installed: pip install '.[docs]'", allow_module_level=True)

browser = browsing.browser

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
# relations of <link> that load nothing
PASSIVE = {"canonical", "next", "prev", "edit"}
REPOSITORY = "https://example.org/some/fedspam"
FOREIGN = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)


class Page(HTMLParser):
    """What a page loads, its links, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.scripts: list[str] = []
        self._inside = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag in LOADED and LOADED[tag] in found:
            self.loads.append(found[LOADED[tag]])
        if tag == "link" and not PASSIVE & set(found.get("rel", "").split()):
            self.loads.append(found["href"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self._inside = tag == "script" and found.get("type", "text/javascript") != "application/json"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


(ARGUMENTS,) = re.findall(r"/properdocs (build .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs` does."""
    command = [sys.executable, "-m", "properdocs", *ARGUMENTS.split(), "--site-dir", str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "FEDSPAM_REPOSITORY": REPOSITORY}
    return subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=3000, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("text", ["[a](missing.md)", "[a](#nowhere)", "[`a`][no.such.name]", "::: no_such_module"])
def test_a_warning_fails_the_build(tmp_path: Path, text: str) -> None:
    """So that the build of the whole site shows that there is none."""
    plugins = "plugins: [search, {mkdocstrings: {handlers: {python: {}}}}]"
    lines = ["site_name: small", "theme: {name: material, font: false}", plugins, "validation: {anchors: warn}", ""]
    (tmp_path / "mkdocs.yml").write_text("\n".join(lines))
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "index.md"
    page.write_text("# A page\n")
    assert build(tmp_path, tmp_path / "site").returncode == 0
    page.write_text(f"# A page\n\n{text}\n")
    assert build(tmp_path, tmp_path / "site").returncode != 0


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def test_every_method_has_a_page_with_formula_and_cost(site: Path) -> None:
    for key, row in METHODS.items():
        text = (site / "methods" / f"{key}.html").read_text()
        assert f"<title>{row.name} - fedspam</title>" in text, key
        assert "<math" in text, f"{key} has no formula in its docstring"
        when = text.partition('id="when-to-use-it"')[2].partition("<h2")[0]
        assert len(re.sub(r"<[^>]*>", "", when).split()) > 12, key
        cost = text.partition("What a round sends")[2]
        assert cost.count("<tr>") >= 2, key
        for fact, told in table.facts(key).items():
            assert f"<td>{fact}</td>" in text, (key, fact)
            assert (
                fact in ("key", "constructor", "reference") or f"<td>{html.escape(told, quote=False)}</td>" in text
            ), key
    listed = Page(site / "methods.html").links
    assert {f"methods/{key}.html" for key in METHODS} <= set(listed)


NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.py"))


def test_there_are_ten_notebooks_and_a_way_to_each(site: Path) -> None:
    assert len(NOTEBOOKS) >= 10
    listed = Page(site / "notebooks" / "index.html").links
    assert {f"{name}.html" for name in NOTEBOOKS} <= set(listed)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_shown_with_what_it_printed_and_drew(site: Path, name: str) -> None:
    """The build runs it, and fails with it. What is downloaded begins with the line that installs fedspam."""
    shown = Page(site / "notebooks" / f"{name}.html")
    assert f"images/{name}-1.png" in shown.loads
    assert f"{name}.ipynb" in shown.links
    notebook = json.loads((site / "notebooks" / f"{name}.ipynb").read_text())
    assert any(output.get("name") == "stdout" for cell in notebook["cells"] for output in cell.get("outputs", []))
    title, install = (cell["source"] for cell in notebook["cells"][:2])
    assert title.startswith("# ")
    assert install == f'%pip install --quiet "fedspam[data,flower,parquet] @ git+{REPOSITORY}"'


def test_pages_have_the_version_and_the_repository(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert f'<small class="version">{fedspam.__version__}</small>' in path.read_text(), path
        assert REPOSITORY in page.links, path


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@example.org:some/fedspam.git", "https://example.org/some/fedspam"),
        ("https://user:secret@example.org/some/fedspam.git", "https://example.org/some/fedspam"),
        ("ssh://git@example.org/some/fedspam", "https://example.org/some/fedspam"),
        ("/srv/git/fedspam.git", None),
        ("../main", None),
        ("", None),
    ],
)
def test_the_link_is_the_page_of_the_remote(remote: str, address: str | None) -> None:
    assert runpy.run_path(str(ROOT / "docs" / "pages.py"))["web_address"](remote) == address


def test_formulas_are_drawn(site: Path) -> None:
    """No formula is left as LaTeX, in reST or between dollars."""
    for path in site.rglob("*.html"):
        text = re.sub(r"<(code|pre)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        left = re.search(r"arithmatex|:math:|\.\. math::|\$\$|\\(?:frac|nabla|gamma|delta)\b", text)
        assert left is None, f"{path.name}: {text[max(left.start() - 40, 0) : left.end() + 40]}"


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.loads, path
        assert [url for url in page.loads if FOREIGN.match(url)] == [], path
        assert [text for text in page.scripts if re.search(r"https?://", text)] == [], path
    for path in site.rglob("*.css"):
        urls = re.findall(r"""(?:url\(|@import )\s*["']?([^"')\s]+)""", path.read_text())
        assert [url for url in urls if FOREIGN.match(url)] == [], path


def test_every_page_has_its_markdown_and_a_line_in_llms_txt(site: Path, pages: dict[Path, Page]) -> None:
    listed = re.findall(r"^- \[.+\]\((\S+)\)$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert {str(path.relative_to(site).with_suffix(".md")) for path in pages} == set(listed)
    for name in listed:
        text = (site / name).read_text()
        assert text.startswith(("# ", "<")), name
        assert re.search(r"^::: ", text, re.MULTILINE) is None, name


def test_links_within_the_site_hold(site: Path, pages: dict[Path, Page]) -> None:
    wrong: list[str] = []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            if FOREIGN.match(link) or link.startswith(("mailto:", "data:", "javascript:")):
                continue
            name, fragment = urldefrag(link)
            target = (path.parent / unquote(name)).resolve() if name else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)}: {link} does not exist")
            elif fragment and target in pages and unquote(fragment) not in pages[target].anchors:
                wrong.append(f"{path.relative_to(site)}: {link} has no such place")
    assert wrong == []


@pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")  # Flower imports typer, which uses old names of click
def test_the_reference_has_every_public_name(site: Path) -> None:
    """Every class and function that a room exports, and that has a docstring, is somewhere on the site."""
    lines = (site / "objects.inv").read_bytes().split(b"\n", 4)
    known = {line.split(" ", 1)[0] for line in zlib.decompress(lines[4]).decode().splitlines()}
    rooms = (*(name for name in ROOMS if name not in ("_internal", "app")), "app.report", "app.tracking", "app.compare")
    missing: set[str] = set()
    for room in rooms:
        if room == "flower" and importlib.util.find_spec("flwr") is None:
            continue
        module = importlib.import_module(f"fedspam.{room}")
        names = getattr(module, "__all__", vars(module))
        exported = {name: getattr(module, name) for name in names if not name.startswith("_")}
        homes = {name: str(getattr(one, "__module__", "")) for name, one in exported.items() if one.__doc__}
        # a library room exports what its files define; the app's modules also import what they only use
        own = lambda home: home == f"fedspam.{room}" or (room in ROOMS and home.startswith(f"fedspam.{room}"))
        homes = {name: home for name, home in homes.items() if own(home)}
        assert homes
        missing |= {f"{home}.{name}" for name, home in homes.items() if f"{home}.{name}" not in known}
    assert missing == set()


def test_the_reference_has_one_page_per_room() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert pages == {"index", *ROOMS} - {"_internal"}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


SHOWN = (
    "index", "tutorial", "choosing", "methods", "comparison", "paper", "architecture", "json",
    "notebooks/index", "notebooks/your_table", "notebooks/fair", "notebooks/own_method",
)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "dark"),
    [(browsing.LAPTOP, False), (browsing.PHONE, False), (browsing.PHONE, True)],
    ids=["laptop", "phone", "dark"],
)
def test_pages_open_in_a_browser(browser: Any, site: Path, size: tuple[int, int], dark: bool) -> None:
    """No error, no request to another host, nothing wider than the window; formulas with several lines are drawn so."""
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    with served(site) as address:
        for name in SHOWN:
            with browsing.opened(browser, f"{address}/{name}.html", size, dark) as page:
                assert page.evaluate(sideways) <= 0, name
                broken = "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
                assert page.evaluate(broken) == [], name
        with browsing.opened(browser, f"{address}/methods/spam_pp.html", size) as page:
            assert page.evaluate(sideways) <= 0
            rows = "[...document.querySelector('math mtable').children].map(row => row.getBoundingClientRect().top)"
            first, second = page.evaluate(rows)
            assert second > first + 10


@pytest.mark.parametrize("disk", [False, True], ids=["served", "from disk"])
def test_search_finds_a_method(browser: Any, site: Path, disk: bool) -> None:
    with served(site) as address, browsing.opened(browser, f"{site.as_uri() if disk else address}/index.html") as page:
        page.click(".md-search__input")
        page.keyboard.type("SCAFFOLD")
        browsing.eventually(page, "document.querySelectorAll('.md-search-result__item').length > 0")
        assert "SCAFFOLD" in page.inner_text(".md-search-result__list")


@pytest.mark.parametrize(("size", "columns"), [(browsing.LAPTOP, 3), (browsing.PHONE, 2)], ids=["laptop", "phone"])
def test_the_tables_of_methods_fit(browser: Any, site: Path, size: tuple[int, int], columns: int) -> None:
    """One table for the first ten, and one per family, with the same columns; none is wider than its place."""
    with browsing.opened(browser, f"{site.as_uri()}/methods.html", size) as page:
        shown = "(table) => [...table.querySelectorAll('th')].filter((one) => one.checkVisibility()).length"
        tables = page.evaluate(f"[...document.querySelectorAll('.methods table')].map({shown})")
        assert tables == [columns] * (1 + len(FAMILIES))
        wide = "(one) => one.scrollWidth > one.clientWidth"
        assert page.evaluate(f"[...document.querySelectorAll('.md-typeset__scrollwrap')].filter({wide}).length") == 0


def test_figures_are_dark_in_the_dark(browser: Any, site: Path) -> None:
    """Figures are inverted; pictures of pages are those of the dark scheme."""
    with browsing.opened(browser, f"{site.as_uri()}/gallery.html", dark=True) as page:
        figure = page.locator("img[src$='images/ridge.png']")
        assert "invert" in figure.evaluate("(one) => getComputedStyle(one).filter")
        shown = page.evaluate(
            "[...document.images].filter((one) => one.checkVisibility()).map((one) => one.src.split('/').pop())"
        )
        assert {"report-dark.png#only-dark", "lab-dark.png#only-dark"} <= set(shown)
        assert not {"report.png#only-light", "lab.png#only-light"} & set(shown)
