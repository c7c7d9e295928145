"""Debian's Chromium, driven over the DevTools protocol."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, ViewportSize, async_playwright
from system.tools import find

WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


@asynccontextmanager
async def opened(**context: Any) -> AsyncIterator[Page]:
    """Open a page whose errors, and violations of its content security policy, fail the test."""
    faults: list[str] = []
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find("chromium"), args=sandbox)
        try:
            page = await browser.new_page(**{"viewport": WIDE, "color_scheme": "light", **context})
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console",
                lambda message: (
                    faults.append(message.text) if "Content Security" in message.text else None
                ),
            )
            page.set_default_timeout(30_000)
            yield page
        finally:
            await browser.close()
    assert faults == []
