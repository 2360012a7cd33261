"""Open every page of the built site in a browser: light, dark, and at the width of a phone.

    python docs/hooks/look.py build/site [--browser /usr/bin/chromium]

Needs `playwright` and a Chromium; neither is installed with Stagecut. Ends with code 1 if a page
writes an error to the console, scrolls sideways, or if search does not find what it should.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
import threading
from pathlib import Path

from playwright.sync_api import Page, TimeoutError, sync_playwright

WORDS = ("transfer cost", "bound", "tied")
VIEWS = (("light", 1280), ("dark", 1280), ("light", 400))


def main() -> int:
    """Look at all pages, print what is wrong, and return how many things are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    asked = parser.parse_args()
    address = serve(asked.site)
    pages = sorted(path.relative_to(asked.site).as_posix() for path in asked.site.rglob("*.html"))
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=asked.browser, args=["--no-sandbox", "--disable-background-networking"]
        )
        for scheme, width in VIEWS:
            context = browser.new_context(
                color_scheme="dark" if scheme == "dark" else "light",
                viewport={"width": width, "height": 900},
            )
            page = context.new_page()
            page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            for name in pages:
                page.goto(f"{address}/{name}")
                if sideways(page):
                    wrong.append(f"{name} scrolls sideways at {width}, {scheme}")
        missing = [word for word in WORDS if not found(page, f"{address}/index.html", word)]
        wrong += [f"search does not find {word!r}" for word in missing]
        browser.close()
    print(*wrong, sep="\n")
    print(f"{len(pages)} pages, {len(VIEWS)} views: {len(wrong)} things wrong")
    return 1 if wrong else 0


def serve(site: Path) -> str:
    """Serve the folder on this machine; return its address."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serve files and say nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def sideways(page: Page) -> bool:
    """Whether the page itself is wider than the window."""
    script = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    return bool(page.evaluate(script))


def found(page: Page, address: str, word: str) -> bool:
    """Whether search lists a page for the word."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(address)
    page.click(".md-search__input, .md-search__button")
    page.keyboard.type(word)
    try:
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
    except TimeoutError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
