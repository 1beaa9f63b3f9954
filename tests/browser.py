"""Pages in headless Chromium: the fixture that opens them, and the command that takes the screenshots of the docs.

python tests/browser.py            # docs/images/report*.png and docs/images/lab*.png
"""

import contextlib
import importlib.util
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LAPTOP, PHONE = (1280, 800), (390, 844)
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing() -> str | None:
    """Why no page can be opened here, or None."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install playwright"
    if _chromium() is None:
        return "there is no Chromium: apt install chromium, or name it in FEDSPAM_CHROMIUM"
    return None


def _chromium() -> str | None:
    names = (os.environ.get("FEDSPAM_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser, which ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=ARGUMENTS, headless=True, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Any, address: str, size: tuple[int, int] = LAPTOP, dark: bool = False) -> Iterator[Any]:
    """A page; leaving the block asserts that it said nothing on the console and asked nobody else for anything."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        device_scale_factor=2 if size == PHONE else 1,
        has_touch=size == PHONE,
    )
    context.set_default_timeout(60_000)
    said: list[str] = []
    asked: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        yield page
        origin = "/".join(address.split("/")[:3])
        assert said == []
        assert [url for url in asked if not url.startswith((origin, "data:", "blob:"))] == []
    finally:
        context.close()


def eventually(page: Any, expression: str, seconds: float = 120) -> Any:
    """Wait until an expression is true on the page; its own policy forbids the browser to evaluate text by itself."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := page.evaluate(expression):
            return found
        page.wait_for_timeout(50)
    raise AssertionError(f"not true after {seconds} s: {expression}")


def unreadable(page: Any) -> list[str]:
    """Texts on the page that are too small or cut off, and whether the page must be scrolled sideways."""
    return page.evaluate(
        """() => {
          const found = [];
          const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
          if (wide > 0) found.push(`the page is ${wide} pixels wider than the window`);
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          const seen = new Set();
          while (walker.nextNode()) {
            const element = walker.currentNode.parentElement;
            const text = walker.currentNode.textContent.trim().slice(0, 40);
            if (!text || seen.has(element) || element.closest("script, style, noscript")) continue;
            seen.add(element);
            const box = element.getBoundingClientRect();
            if (!box.width || !element.checkVisibility()) continue;
            const size = parseFloat(getComputedStyle(element).fontSize);
            if (size < 11.5) found.push(`${text}: ${size} pixels`);
            const scrolls = element.closest(".scroll, .code, .tip");
            const cut = box.left < -1 || box.right > innerWidth + 1;
            if (cut && !scrolls) found.push(`${text}: from ${box.left} to ${box.right}`);
          }
          return found;
        }"""
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium for the tests of a file."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with chromium() as found:
        yield found


# --- the pictures of the docs ----------------------------------------------------------------------------------------

WORLD = "--data quadratics --data.clients 100 --data.delta 0.1 --data.condition 50 --data.noise 0.02 --run.segment 20"
RUNS = {
    "spam_pp": "--algorithm.cohort_size 10 --algorithm.step_size 3 --algorithm.fresh_weight 0.3 "
    "--prox gradient --prox.steps 10",
    "fedavg": "--algorithm.cohort_size 10 --algorithm.local_rate 0.005 --algorithm.local_steps 5",
    "saber": "--algorithm.cohort_size 10 --algorithm.step_size 1 --algorithm.probability 0.2 --prox exact",
}


def pictures(images: Path) -> None:
    """Make some runs, their report and the lab, and take their pictures."""
    import tempfile
    import threading

    from fedspam.app import report
    from fedspam.app.cli import main
    from fedspam.app.lab import Server

    with tempfile.TemporaryDirectory() as name, chromium() as found:
        folder = Path(name)
        for method, settings in RUNS.items():
            line = f"run {WORLD} --algorithm {method} {settings} --rounds 200 --run.precision float64 --quiet"
            assert main([*line.split(), "--out", str(folder / method)]) == 0
        address = folder / "report.html"
        report.write([folder / method for method in RUNS], address, title="Three methods on similar quadratics")
        for label, size, dark in (("", (1280, 1250), False), ("-dark", (1280, 1250), True), ("-phone", PHONE, False)):
            with opened(found, address.as_uri(), size, dark) as page:
                page.wait_for_selector("#curves .curve")
                if not label:
                    page.hover("#curves .chart > svg", position={"x": 620, "y": 140})
                page.screenshot(path=images / f"report{label}.png")
        with Server(0, idle=600) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            for label, size, dark in (
                ("", (1280, 1250), False),
                ("-dark", (1280, 1250), True),
                ("-phone", PHONE, False),
            ):
                with opened(found, server.url, size, dark) as page:
                    eventually(page, "document.querySelectorAll('#chart .curve').length === 3")
                    eventually(page, "document.querySelectorAll('#map .region').length === 2")
                    page.locator("#slider-fresh_weight").press("ArrowLeft")
                    page.wait_for_timeout(100)
                    eventually(page, "document.querySelector('#status').textContent.startsWith('answered')")
                    page.screenshot(path=images / f"lab{label}.png")
            server.shutdown()
            thread.join(10)


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    pictures(Path(__file__).parents[1] / "docs" / "images")
