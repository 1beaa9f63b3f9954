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
        browser = playwright.chromium.launch(
            executable_path=_chromium(), args=ARGUMENTS, headless=True, timeout=300_000
        )
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
    context.set_default_timeout(300_000)
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


def eventually(page: Any, expression: str, seconds: float = 300) -> Any:
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

TABLE = "--data table --data.path {} --data.client hospital --data.label outcome --data.test 0.3 --model softmax"
RUNS = {
    "auto": "--method.cohort_size 8",
    "fedavg": "--method.cohort_size 8 --method.local_steps 5 --method.local_rate 0.1",
    "scaffold": "--method.cohort_size 8 --method.local_steps 5 --method.local_rate 0.1",
}
SCREENS = (("", (1440, 1320), False), ("-dark", (1440, 1320), True), ("-phone", PHONE, False))


def hospitals(path: Path) -> None:
    """A made-up table of 23 hospitals whose patients differ, with three outcomes."""
    import csv

    import numpy as np

    random = np.random.default_rng(0)
    weights = random.normal(size=(3, 4))
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["hospital", "age", "pressure", "marker", "activity", "outcome"])
        for number in range(23):
            rows = random.normal(size=(random.integers(30, 120), 4)) + 0.7 * random.normal(size=4)
            scores = rows @ weights.T + 1.2 * random.normal(size=(len(rows), 3)) + random.normal(size=3)
            for (age, pressure, marker, activity), outcome in zip(rows, scores.argmax(1), strict=True):
                level = ("low", "middle", "high")[int(activity > -0.5) + int(activity > 0.5)]
                numbers = (f"{50 + 12 * age:.0f}", f"{130 + 20 * pressure:.1f}", f"{marker:.3f}")
                table.writerow([f"hospital {number + 1}", *numbers, level, ("healthy", "mild", "severe")[outcome]])


def keep(png: bytes, path: Path) -> None:
    """Write a picture in its 256 most frequent colors, which makes a small file; the others become the nearest."""
    import io

    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int32)
    codes, place, count = np.unique(pixels @ [65536, 256, 1], return_inverse=True, return_counts=True)
    apart = lambda numbers: np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=-1).astype(np.float32)
    palette = apart(codes[np.argsort(-count)[:256]])
    nearest = [np.argmin(((palette - color) ** 2).sum(axis=1)) for color in apart(codes)]
    small = Image.fromarray(np.array(nearest, np.uint8)[place].reshape(pixels.shape[:2]), "P")
    small.putpalette(palette.astype(np.uint8).tobytes())
    small.save(path, optimize=True)


def pictures(images: Path) -> None:
    """Make some runs, their report and the lab, and take their pictures."""
    import tempfile
    import threading

    from fedspam.app import report
    from fedspam.app.cli import main
    from fedspam.app.lab import Server

    with tempfile.TemporaryDirectory() as name, chromium() as found:
        folder = Path(name)
        hospitals(folder / "hospitals.csv")
        for method, settings in RUNS.items():
            line = f"run {TABLE.format(folder / 'hospitals.csv')} --method {method} {settings} --rounds 60 --quiet"
            assert main([*line.split(), "--out", str(folder / method)]) == 0
        address = folder / "report.html"
        report.write([folder / method for method in RUNS], address, title="Three methods on 23 hospitals")
        for label, size, dark in SCREENS:
            with opened(found, address.as_uri(), size, dark) as page:
                page.wait_for_selector("#curves .curve")
                if not label:
                    page.hover("#curves .chart > svg", position={"x": 620, "y": 140})
                keep(page.screenshot(), images / f"report{label}.png")
                if not label:
                    page.set_viewport_size({"width": 1440, "height": 1000})
                    page.locator("#tested").scroll_into_view_if_needed()
                    page.evaluate("scrollTo(0, document.querySelector('#tested').offsetTop - 16)")
                    keep(page.screenshot(), images / "report-clients.png")
        with Server(0, idle=600) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            for label, size, dark in SCREENS:
                with opened(found, server.url, size, dark) as page:
                    eventually(page, "document.querySelectorAll('#chart .curve').length === 3")
                    eventually(page, "document.querySelectorAll('#map .region').length === 2")
                    page.locator("#slider-fresh_weight").press("ArrowLeft")
                    page.wait_for_timeout(100)
                    eventually(page, "document.querySelector('#status').textContent.startsWith('answered')")
                    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
                    keep(page.screenshot(), images / f"lab{label}.png")
            server.shutdown()
            thread.join(10)


if __name__ == "__main__":
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    pictures(Path(__file__).parents[1] / "docs" / "images")
