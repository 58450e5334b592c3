"""A real browser without a window: Debian's chromium, driven over WebDriver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "open_browser", "why_no_browser"]

_PROGRAMS = ("chromium", "chromedriver")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
#: For a condition of the page, on a busy machine.
_PATIENCE_S = 30.0


def why_no_browser() -> str | None:
    """What is missing, and where to get it; None if nothing is."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: chromium, chromium-driver)"
    try:
        import selenium  # noqa: F401 - whether it is there
    except ImportError:
        return "needs the package selenium"
    return None


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Skips where there is none, and fails where the tools are required."""
    missing = why_no_browser()
    if missing is not None:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(missing)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in (*_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """One window. Scripts of tests run in the page; what they return is JSON."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """A page, in a window of this size. What an earlier one has complained about is forgotten."""
        self.driver.get("about:blank")
        self.complaints()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Of the first element that matches, as it is shown."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until it holds."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, _PATIENCE_S, 0.05).until(lambda _driver: condition(), f"still not: {what}")

    def wait_for_text(self, selector: str, *parts: str) -> None:
        """Until the element shows all of them."""
        self.wait(lambda: all(part in self.text(selector) for part in parts), f"{selector} shows {parts}")

    def press(self, *keys: str) -> None:
        """Keys for whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """All that the page has written to the console since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def nameless(self) -> list[str]:
        """What a screen reader finds and cannot name, as the browser itself computes it."""
        self.driver.execute_cdp_cmd("Accessibility.enable", {})
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = {"button", "tab", "tabpanel", "textbox", "radio", "link", "image", "img", "region", "table", "dialog"}
        known = [node for node in nodes if not node.get("ignored")]
        assert len(known) > 30
        return [
            node["role"]["value"]
            for node in known
            if node["role"]["value"] in roles and not node.get("name", {}).get("value")
        ]

    def pale(self) -> list[str]:
        """Texts whose contrast with what is behind them is less than 4.5 to 1 (WCAG 2, 1.4.3)."""
        found: list[str] = self.run(_PALE)
        return found

    def picture(self, file: Path) -> None:
        """Of what the window shows."""
        self.driver.save_screenshot(str(file))


_PALE = """
const part = (value) => { value /= 255; return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const ratio = (one, other) => {
  const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const isClear = (color) => color === "none" || color === "transparent" || numbers(color)[3] === 0;
function behind(element) {
  for (let each = element; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (!isClear(color)) return numbers(color);
  }
  return [255, 255, 255];
}
function behindText(element) {  // of a text in a drawing: the last bar that is drawn before it and around it
  const box = element.getBoundingClientRect();
  const bars = [...element.parentElement.querySelectorAll("rect")].filter((bar) => {
    const r = bar.getBoundingClientRect();
    const isBefore = bar.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING;
    return isBefore && !bar.getAttribute("fill") && r.height > 5 && r.left <= box.left && r.right >= box.right;
  });
  return bars.length ? numbers(getComputedStyle(bars.at(-1)).fill) : behind(element);
}
const pale = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const element = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || !element.checkVisibility() || element.closest("title, .hidden, .skip")) continue;
  const isDrawn = element instanceof SVGElement;
  const style = getComputedStyle(element);
  const found = ratio(numbers(isDrawn ? style.fill : style.color), isDrawn ? behindText(element) : behind(element));
  if (found < 4.5) pale.push(`${found.toFixed(2)}: ${walk.currentNode.data.trim().slice(0, 40)}`);
}
return pale;
"""
