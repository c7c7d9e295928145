"""The live page in a real browser, in front of a real gateway with faulty model servers."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from kubernetes.conftest import write_kubeconfig
from kubernetes.discoveries import POOL, create_pods, spec_of
from kubernetes.fake_api import PODS, fake_api
from playwright.async_api import Locator, Page, expect
from system.browser import PHONE, opened

from epp.admin import ExplainSettings
from epp.app import App, ServeSettings
from epp.config import DEFAULT_CONFIG, load_text
from epp.data_layer import EndpointSpec
from epp.kubernetes.source import PoolsSource
from epp.lab.envoy import EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import LISTENER
from epp.lab.fleet import Fleet, FleetConfig
from epp.outlier_detection import OutlierSettings
from epp.several_pools import SeveralPools
from tools.harness.gateway import Picker, picking, serving, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

expect.set_options(timeout=60_000)  # a straggler answers after seconds; each wait ends when it can

SHOTS = Path("build/live-page")
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: queue-scorer}
- {type: kv-cache-utilization-scorer}
- {type: prefix-cache-scorer}
- {type: max-score-picker}
- {type: single-profile-handler}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - {pluginRef: prefix-cache-scorer, weight: 1}
  - {pluginRef: max-score-picker}
"""


class Servers:
    """Several fleets as one."""

    def __init__(self, *fleets: Fleet) -> None:
        self.addresses = tuple(address for fleet in fleets for address in fleet.addresses)


@asynccontextmanager
async def gateway(picker: Picker, servers: Servers) -> AsyncIterator[str]:
    config = GatewayConfig(
        mode=Mode.FULL_DUPLEX,
        endpoints=servers.addresses,
        listen_port=0,
        epp_port=picker.ports.grpc or 0,
        epp_tls=False,
    )
    async with EnvoyProcess(json.dumps(await asyncio.to_thread(bootstrap, config))) as envoy:
        host, port = await envoy.listener_address(LISTENER)
        yield f"http://{host}:{port}"


@asynccontextmanager
async def load(url: str, clients: int) -> AsyncIterator[None]:
    """Keep so many requests in flight."""

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        body = {"model": "tiny", "max_tokens": 24, "stream": True}
        while True:
            prompt = f"{'shared prefix ' * 40}{number % 4}"
            try:
                await client.post(f"{url}/v1/completions", json={**body, "prompt": prompt})
            except httpx.HTTPError:
                await asyncio.sleep(0.05)  # the crash

    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        tasks = [asyncio.create_task(ask(client, number)) for number in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def url(picker: Picker, section: str = "") -> str:
    return f"http://127.0.0.1:{picker.ports.metrics}/ui/{section}"


async def shoot(page: Page, name: str) -> None:
    await asyncio.to_thread(SHOTS.mkdir, parents=True, exist_ok=True)
    await page.evaluate("scrollTo(0, 0)")
    await page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


@dataclass
class Faulty:
    """A gateway under load in front of eight servers, of which one is slow and one has crashed."""

    page: Page
    config: Path
    straggler: str
    crashed: str

    @property
    def problems(self) -> Locator:
        return self.page.locator("#problems")


@asynccontextmanager
async def faulty(folder: Path) -> AsyncIterator[Faulty]:
    config = folder / "config.yaml"
    await asyncio.to_thread(config.write_text, CONFIG)
    async with AsyncExitStack() as stack, AsyncExitStack() as crash:
        sound = await stack.enter_async_context(Fleet(FleetConfig(endpoints=6, time_scale=0.5)))
        slow = await stack.enter_async_context(Fleet(FleetConfig(endpoints=1, time_scale=15)))
        doomed = await crash.enter_async_context(Fleet(FleetConfig(endpoints=1, time_scale=0.5)))
        servers = Servers(sound, slow, doomed)
        serve = {"outliers": OutlierSettings(response_overdue_seconds=0)}
        picker = await stack.enter_async_context(picking(servers, config=config, serve=serve))
        via = await stack.enter_async_context(gateway(picker, servers))
        page = await stack.enter_async_context(opened())
        await stack.enter_async_context(load(via, 40))
        names = {each.address: each.name for each in picker.app.pool.store.snapshot}
        await page.goto(url(picker))
        await crash.aclose()
        yield Faulty(page, config, names[slow.addresses[0]], names[doomed.addresses[0]])


async def test_the_page_alone_tells_which_server_is_bad_and_why_requests_avoid_it(
    tmp_path: Path,
) -> None:
    async with faulty(tmp_path) as site:
        page = site.page
        await expect(site.problems).to_contain_text(
            f"1 of 8 endpoints is ejected and gets no requests: {site.crashed}: "
        )
        await expect(site.problems).to_contain_text(f"{site.straggler} is slow: its requests take")
        rows = page.locator("tbody tr")
        await expect(rows.nth(0)).to_contain_text(f"{site.crashed}ejected")
        await expect(rows.nth(1)).to_contain_text(f"{site.straggler}slow")
        await page.get_by_role("button", name=site.straggler, exact=True).click()
        detail = page.get_by_role("region", name="Chosen endpoint")
        await expect(detail).to_contain_text("an equal share is 13 %. Requests avoid it because")
        await expect(detail).to_contain_text("at the median endpoint")
        await expect(page.locator(".chart").nth(1)).to_contain_text("Time to first token")

        await shoot(page, "light")
        await page.get_by_role("button", name="Use dark colours").click()
        await shoot(page, "dark")
        await page.set_viewport_size(PHONE)
        await shoot(page, "phone")
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(overflow) <= 0, "a phone scrolls up and down only"


async def test_every_section_shows_what_happens(tmp_path: Path) -> None:
    async with faulty(tmp_path) as site:
        page, panel = site.page, site.page.locator("#panel")
        await expect(site.problems).to_contain_text("is ejected")
        await page.get_by_role("tab", name="Decisions").click()
        await page.locator("tbody button.link").first.click()
        explanation = page.get_by_role("region", name="Explanation")
        await expect(explanation).to_contain_text("prefix-cache-scorer")
        await expect(explanation).to_contain_text("max-score-picker picked")
        await shoot(page, "decision")
        await page.get_by_role("tab", name="Queues").click()
        await expect(panel).to_contain_text("Flow control is off")
        await page.get_by_role("tab", name="Plugins").click()
        await expect(page.locator("tbody tr", has_text="queue-scorer").first).to_contain_text("µs")
        await shoot(page, "plugins")

        await asyncio.to_thread(site.config.write_text, CONFIG.replace("weight: 2", "weight: 5"))
        await page.get_by_role("tab", name="Configuration").click()
        await expect(panel).to_contain_text("it is in use")
        await expect(page.locator("pre .added").last).to_contain_text("weight: 5")
        await asyncio.to_thread(site.config.write_text, "kind: [broken")
        await expect(panel).to_contain_text("refused; the one before stays in use")
        await expect(site.problems).to_contain_text("configuration file is not in use")
        await shoot(page, "configuration")

        await page.get_by_role("tab", name="What if").click()
        verdict = page.locator(".verdict")
        await expect(verdict).to_contain_text("0 of")
        for name in ("queue-scorer", "kv-cache-utilization-scorer"):
            await page.get_by_label(f"Weight of {name}").fill("0")
        await page.get_by_label("Weight of prefix-cache-scorer").fill("10")
        await expect(verdict).to_contain_text("choices would change")
        await shoot(page, "what-if")


async def test_what_if_adds_up_the_recorded_scores() -> None:
    choices = [
        {
            "endpoints": ["a", "b"],
            "picked": "a",
            "scorers": [
                {"name": "queue", "weight": 2, "values": [1.0, 0.0]},
                {"name": "cache", "weight": 1, "values": [0.0, 1.0]},
            ],
        },
        {
            "endpoints": ["a", "b"],
            "picked": "b",  # a tie, which the picker has broken
            "scorers": [{"name": "queue", "weight": 2, "values": [0.5, 0.5]}],
        },
        {
            "endpoints": ["a", "b", "c"],
            "picked": "c",  # a random picker: not the highest total
            "scorers": [{"name": "queue", "weight": 2, "values": [0.9, 0.5, 0.1]}],
        },
    ]
    script = """async ([choices, weights]) => {
        const { replay } = await import('./whatif.js');
        const result = replay(choices, weights);
        return [result.changed, Object.fromEntries(result.after)];
    }"""
    async with Fleet(FleetConfig(endpoints=2)) as fleet, picking(fleet) as picker, opened() as page:
        await page.goto(url(picker))
        same = await page.evaluate(script, [choices, {}])
        assert same == [0, {"a": 1, "b": 1, "c": 1}], "the present weights change nothing"
        changed = await page.evaluate(script, [choices, {"cache": 3}])
        assert changed == [1, {"b": 2, "c": 1}]


HOSTILE = "<img src=x onerror=\"document.body.dataset.pwned='1'\">"


async def test_names_and_texts_of_others_are_text() -> None:
    async with Fleet(FleetConfig(endpoints=2)) as fleet, picking(fleet) as picker, opened() as page:
        store = picker.app.pool.store
        specs = [
            EndpointSpec(f"ns/{HOSTILE}{n}", each, {"llm-d.ai/role": f"<script>{HOSTILE}</script>"})
            for n, each in enumerate(fleet.addresses)
        ]
        store.replace_sources({"hostile": specs}, instead_of=[*store._sources])
        servers = Servers(fleet)
        async with gateway(picker, servers) as via, httpx.AsyncClient(trust_env=False) as client:
            for _ in range(3):
                await client.post(
                    f"{via}/v1/completions",
                    json={"model": HOSTILE, "prompt": HOSTILE, "max_tokens": 2},
                    headers={"x-gateway-inference-fairness-id": HOSTILE},
                )
            await page.goto(url(picker))
            await expect(page.locator("tbody tr").first).to_contain_text(HOSTILE)
            await page.locator("tbody button.link").first.click()
            await expect(page.get_by_role("region", name="Chosen endpoint")).to_contain_text(
                HOSTILE
            )
            await page.get_by_role("tab", name="Decisions").click()
            await page.locator("tbody button.link").first.click()
            explained = page.get_by_role("region", name="Explanation")
            await expect(explained).to_contain_text(HOSTILE)
            await page.goto(url(picker, f"#decisions?endpoint={HOSTILE}&request={HOSTILE}"))
            await page.get_by_role("tab", name="What if").click()
            await expect(page.locator("#panel")).to_contain_text("would change")
        assert await page.locator("main img, main script").count() == 0
        assert await page.evaluate("document.body.dataset.pwned") is None
        with pytest.raises(Exception, match="TrustedHTML"):
            await page.evaluate("document.body.innerHTML = '<b>no</b>'")


async def test_explanations_may_be_off() -> None:
    async with (
        Fleet(FleetConfig(endpoints=2)) as fleet,
        picking(fleet, serve={"explain": ExplainSettings(explain_decisions=0)}) as picker,
        opened() as page,
    ):
        await page.goto(url(picker, "#decisions"))
        await expect(page.locator("#panel")).to_contain_text("explanations are off")


def big_snapshot(endpoints: int, columns: list[str], like: list[Any], rest: dict[str, Any]) -> str:
    rows = []
    for number in range(endpoints):
        row = dict(zip(columns, like, strict=True))
        row |= {
            "name": f"default/pod-{number:04}",
            "queue": number % 13,
            "kv_usage": number % 100 / 100,
        }
        if number % 250 == 7:
            row |= {"state": "ejected", "reason": "2 failed scrapes in a row (connect)"}
        rows.append(list(row.values()))
    return f"event: snapshot\ndata: {json.dumps({**rest, 'rows': rows})}\n\n"


async def test_a_thousand_endpoints_fit_on_the_page() -> None:
    async with Fleet(FleetConfig(endpoints=2)) as fleet, picking(fleet) as picker, opened() as page:
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            client.stream("GET", url(picker).replace("/ui/", "/debug/events")) as events,
        ):
            lines = events.aiter_lines()
            await anext(lines)
            snapshot = json.loads((await anext(lines)).removeprefix("data: "))
        body = big_snapshot(1000, snapshot["columns"], snapshot["rows"][0], snapshot)
        await page.route(
            "**/debug/events",
            lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        )
        await page.goto(url(picker))
        await expect(page.locator(".heat .cell")).to_have_count(1000)
        await expect(page.locator(".heat .cell[data-state=ejected]")).to_have_count(4)
        await expect(page.locator("tbody tr")).to_have_count(50)
        await expect(page.locator("tbody tr").first).to_contain_text("ejected")
        await page.get_by_role("button", name="Show all 1,000").click()
        await expect(page.locator("tbody tr")).to_have_count(1000)
        await page.get_by_role("button", name="Show 50").click()
        await page.get_by_label("Filter endpoints").fill("pod-0042")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_label("Filter endpoints").fill("")
        await page.locator(".heat .cell").first.focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("Enter")
        chosen = page.get_by_role("region", name="Chosen endpoint")
        await expect(chosen).to_contain_text("default/pod-0001")
        await expect(page.locator("#problems")).to_contain_text("connecting again")
        await shoot(page, "thousand")


class OneToken:
    """Lets in the token ``right``."""

    async def allows(self, token: str, path: str, verb: str) -> "Verdict":
        return Verdict(HTTPStatus.OK if token == "right" else HTTPStatus.UNAUTHORIZED)

    async def close(self) -> None:
        pass


class Verdict:
    text = "a bearer token is needed"

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


async def test_tokens_are_asked_for_and_endpoints_drained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(App, "_authorizer", lambda self: OneToken())
    token = tmp_path / "token"
    await asyncio.to_thread(token.write_text, "admin secret\n")
    serve = {"enable_admin_writes": True, "admin_token_file": token}
    async with (
        Fleet(FleetConfig(endpoints=2)) as fleet,
        picking(fleet, serve=serve) as picker,
        opened() as page,
    ):
        name = picker.app.pool.store.snapshot[0].name
        await page.goto(url(picker))
        await expect(page.locator("#token-text")).to_have_text("a bearer token is needed")
        for given, seen in (("wrong", "#token-text"), ("right", ".heat .cell")):
            await page.get_by_label("Token", exact=True).fill(given)
            await page.keyboard.press("Enter")
            await expect(page.locator(seen).first).to_be_visible()
        await page.get_by_role("button", name=name, exact=True).click()
        detail = page.get_by_role("region", name="Chosen endpoint")
        await detail.get_by_label("Admin token").fill("wrong")
        await detail.get_by_role("button", name="Drain").click()
        await expect(detail).to_contain_text("--admin-token-file")
        await detail.get_by_label("Admin token").fill("admin secret")
        await detail.get_by_role("button", name="Drain").click()
        await expect(detail).to_contain_text("Requests avoid it because it drains (epp drain)")
        await expect(page.locator("#problems")).to_contain_text("drains and gets no new requests")
        await detail.get_by_role("button", name="End draining").click()
        await expect(page.locator("#problems")).not_to_contain_text("drains")
        await page.reload()
        await expect(page.locator("#token-text")).to_have_text("a bearer token is needed")
        stored = await page.evaluate(
            "JSON.stringify([localStorage, sessionStorage, document.cookie])"
        )
        assert "right" not in stored
        assert "secret" not in stored


async def test_a_list_chooses_one_of_several_pools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with fake_api((PODS, POOL)) as api:
        for name, numbers in (("chat", (1, 2)), ("code", (3,))):
            create_pods(api, *numbers, labels={"app": name})
            api.create(POOL, name, spec=spec_of({"app": name}, 8000))
        file = await asyncio.to_thread(write_kubeconfig, tmp_path / "kubeconfig", api.url)
        monkeypatch.setenv("KUBECONFIG", str(file))
        settings = ServeSettings(
            config=load_text(DEFAULT_CONFIG, "test"),
            pods=PoolsSource("d"),
            host="127.0.0.1",
            grpc_port=0,
            grpc_health_port=0,
            metrics_port=0,
            drain_timeout_seconds=0.1,
            outliers=OutlierSettings(outlier_detection=False),
        )
        async with serving(settings) as picker, opened() as page:
            assert isinstance(picker.app.pools, SeveralPools)
            pools = picker.app.pools.pools
            await until(lambda: [len(each.store.snapshot) for each in pools.values()] == [2, 1])
            for name, count in (("chat", 3), ("code", 2)):
                for number in range(count):
                    pools[name].director.handle(
                        request_id=f"{name}-{number}",
                        headers={":path": "/v1/completions"},
                        body=b'{"model": "tiny", "prompt": "Hello"}',
                        received_at=monotonic(),
                    )
            await page.goto(url(picker))
            choice, cells = page.locator("#pool"), page.locator(".heat .cell")
            await expect(choice.locator("option")).to_have_text(["chat", "code"])
            await expect(choice).to_have_value("chat")
            await expect(cells).to_have_count(2)
            await choice.focus()
            await page.keyboard.press("ArrowDown")
            await expect(cells).to_have_count(1)
            await expect(page).to_have_url(re.compile(r"pool=code$"))
            await expect(page).to_have_title(re.compile("code"))
            await page.goto(url(picker, "#decisions?pool=code"))
            await page.reload()  # the address keeps the pool
            await expect(choice).to_have_value("code")
            await expect(page.get_by_text("code-1")).to_be_visible()
            await expect(page.get_by_text("chat-")).to_have_count(0)
            await shoot(page, "several-pools")
