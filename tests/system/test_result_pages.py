"""The pages of results in a real browser: light, dark, printed, and as wide as a phone."""

import asyncio
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.async_api import Page, expect
from system.browser import PHONE, opened

from epp.lab.results import ErrorKind, Record, Slo, compare, summarise
from epp.lab.results.page import comparison_page, run_page

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SHOTS = Path("build/result-pages")
SLO = Slo(ttft_seconds=0.5, tpot_seconds=0.03)
TENANTS = ("gold", "<script>document.title = 'ran'</script>", "free\u202eeerf", "long-" * 20)
POLICIES = {"round-robin": 1.0, "least-request": 0.97, "prefix <b>": 0.6, "oracle": 0.45}


def run_records(seed: int, slowness: float = 1.0) -> list[Record]:
    """A minute at 10 requests/s with a hard time in its middle and some failures."""
    rng = Random(seed)
    time = 0.0
    records = []
    for index in range(600):
        time += rng.expovariate(10)
        jam = 1 + 2 * math.exp(-(((time - 30) / 4) ** 2))
        first = time + rng.lognormvariate(-1.6, 0.5) * jam * slowness
        tokens = [first + 0.022 * number for number in range(rng.randint(5, 60))]
        fields: dict[str, Any] = {
            "finished_at": tokens[-1],
            "status": 200,
            "token_times": tokens,
            "output_tokens": len(tokens),
        }
        if rng.random() < 0.01:
            fields = {"finished_at": time + 0.1, "status": 503, "message": "<b>full</b>"}
            fields["error"] = ErrorKind.STATUS
        records.append(
            Record(
                index=index,
                scheduled_at=time,
                started_at=time,
                served_by=f"10.0.0.{rng.randint(1, 8)}:8000",
                prompt_tokens=1000,
                cached_tokens=rng.randint(0, 900),
                tenant=rng.choice(TENANTS),
                adapter=rng.choice(["", "lora-a"]),
                **fields,
            )
        )
    return records


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write both pages."""
    folder = tmp_path_factory.mktemp("pages")
    records = run_records(1)
    runs = {
        policy: {seed: run_records(seed, slowness) for seed in range(3)}
        for policy, slowness in POLICIES.items()
    }
    comparison = compare(
        {p: {seed: summarise(r, SLO) for seed, r in each.items()} for p, each in runs.items()},
        oracles=["oracle"],
    )
    pages = {
        "run": run_page(
            summarise(records, SLO), records, title="Load", slo=SLO, settings={"rate": 10}
        ),
        "comparison": comparison_page(
            comparison, {policy: each[0] for policy, each in runs.items()}, title="Simulation"
        ),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in pages}


async def check(page: Page, name: str) -> None:
    """Look at what any reader sees; take a picture."""
    assert await page.title() in {"Load", "Simulation"}
    await expect(page.locator("script")).to_have_count(0)
    overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow == 0  # wide tables scroll inside their frame
    small = await page.evaluate(
        "[...document.querySelectorAll('figure > svg')]"
        ".filter(each => each.getBoundingClientRect().width < 250).length"
    )
    assert small == 0
    clipped = await page.evaluate(
        "[...document.querySelectorAll('figure > svg')].flatMap(svg => {"
        " const frame = svg.getBoundingClientRect();"
        " return [...svg.querySelectorAll('text')].filter(text => {"
        "  const box = text.getBoundingClientRect();"
        "  return box.left < frame.left - 1 || box.right > frame.right + 1 })"
        "  .map(text => text.textContent) })"
    )
    assert clipped == []
    await asyncio.to_thread(SHOTS.mkdir, parents=True, exist_ok=True)
    await page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        pytest.param("light", {}, id="light"),
        pytest.param("dark", {"color_scheme": "dark"}, id="dark"),
        pytest.param("phone", {"viewport": PHONE}, id="phone"),
        pytest.param("no-scripts", {"java_script_enabled": False}, id="without scripts"),
    ],
)
async def test_pages_are_readable_from_a_file_without_a_network(
    kind: str, context: dict[str, Any], addresses: dict[str, str]
) -> None:
    async with opened(offline=True, **context) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        await page.goto(addresses["run"])
        await expect(page.locator("h1")).to_contain_text("of requests met the objectives")
        await expect(page.get_by_text("<b>full</b>")).to_be_visible()
        await expect(page.locator("figure")).to_have_count(6)
        if kind != "no-scripts":
            await check(page, f"run-{kind}")
        await page.get_by_text("What the terms mean").click()
        await expect(page.get_by_text("time to first token: from sending")).to_be_visible()
        await page.goto(addresses["comparison"])
        await expect(page.locator("h1")).to_contain_text("prefix <b> is best by goodput")
        await expect(page.locator("circle.dot").first).to_be_visible()
        if kind != "no-scripts":
            await check(page, f"comparison-{kind}")
        assert requests == list(addresses.values())


async def test_colours_of_text_stand_out_in_light_and_dark(addresses: dict[str, str]) -> None:
    for scheme in ("light", "dark"):
        async with opened(color_scheme=scheme) as page:
            await page.goto(addresses["comparison"])
            for selector in ("h1", ".soft", ".better", "td.number"):
                ratio = await page.locator(selector).first.evaluate(CONTRAST)
                assert ratio >= 4.5, (scheme, selector)  # WCAG 2.2, 1.4.3


CONTRAST = """element => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, index) => sum + each * [0.2126, 0.7152, 0.0722][index], 0);
  let behind = element;
  const colour = each => channels(getComputedStyle(each).backgroundColor);
  while (colour(behind)[3] === 0) behind = behind.parentElement;
  const [a, b] = [light(channels(getComputedStyle(element).color)), light(colour(behind))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""
"""Contrast of an element's text with what is behind it."""
