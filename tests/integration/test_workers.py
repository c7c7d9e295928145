"""Two real workers behind a real Envoy answer as one endpoint picker."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from epp.config import DEFAULT_CONFIG
from epp.lab.envoy import Mode
from epp.lab.fleet import EngineConfig, FleetConfig
from epp.lab.load import LoadPlan, run
from tools.faults.processes import Setting, Site, site

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),  # three processes start, each in seconds on a busy machine
]

TOKEN = "s3cret"


def prepared(folder: Path) -> Sequence[str]:
    """Write the files of the endpoint picker; return the options that name them."""
    (folder / "config.yaml").write_text(DEFAULT_CONFIG)
    (folder / "token").write_text(TOKEN)
    return (
        *("--config-file", str(folder / "config.yaml")),
        # A scrape amid a burst would show a part of it: what the workers share is to be seen.
        *("--refresh-metrics-interval", "1h"),
        *("--enable-admin-writes", "--admin-token-file", str(folder / "token")),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Site]:
    engine = EngineConfig(
        max_num_seqs=256, num_blocks=100_000, step_seconds=0.05, decode_seconds_per_sequence=0.0
    )
    fleet = FleetConfig(endpoints=4, engine=engine)
    async with site(Setting(Mode.LEAN, workers=2), fleet, prepare=prepared) as made:
        yield made


async def load(gateway: Site, requests: int, **more: Any) -> dict[str, int]:
    """Send requests, of which none may fail; return how many each endpoint got."""
    report = await run(
        LoadPlan(
            url=gateway.url,
            model="tiny",
            requests=requests,
            **{"concurrency": 16, "max_tokens": 4, **more},
        )
    )
    assert report.errors == {}
    assert report.succeeded == requests
    return report.endpoints


async def metric(gateway: Site, name: str, worker: int | None = None) -> float:
    query = "" if worker is None else f"?worker={worker}"
    page = (await gateway.picker.page(f"/metrics{query}")).text
    lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def post(gateway: Site, path: str, token: str = TOKEN) -> httpx.Response:
    url = f"http://127.0.0.1:{gateway.picker.ports['metrics']}{path}"
    async with httpx.AsyncClient(timeout=15.0, trust_env=False, verify=False) as client:
        return await client.post(url, headers={"authorization": f"Bearer {token}"})


async def test_a_burst_over_both_workers_is_spread_evenly(gateway: Site) -> None:
    # The first test: with one scrape an hour, what a page has of earlier requests would last. Each
    # takes 8 s, so none ends before the last one begins, even on a busy machine.
    served = await load(gateway, 80, concurrency=80, max_tokens=160, prompt_chars=500, seed=7)
    assert len(served) == 4
    assert max(served.values()) - min(served.values()) <= 1 + 2
    await gateway.picker.until_idle()


async def test_requests_are_shared_out_and_counted_once(gateway: Site) -> None:
    name = "llm_d_epp_request_total"
    before = [await metric(gateway, name, worker) for worker in (0, 1)]
    await load(gateway, 100)
    await gateway.picker.until(name, sum(before) + 100)
    # Envoy's only thread has a connection to each worker, and takes turns.
    after = [await metric(gateway, name, worker) for worker in (0, 1)]
    assert after == [before[0] + 50, before[1] + 50]


async def test_prompts_of_one_worker_are_known_to_the_other(gateway: Site) -> None:
    async def blocks(worker: int) -> float:
        return await metric(gateway, "llm_d_epp_prefix_indexer_size", worker)

    await load(gateway, 20, prompt_chars=2000, seed=99)
    # Each tells the other within 0.1 s.
    async with asyncio.timeout(60):
        while await blocks(0) != await blocks(1):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
    assert await blocks(0) > 0


async def test_decisions_of_both_are_found(gateway: Site) -> None:
    await load(gateway, 10)
    page = (await gateway.picker.page("/debug/decisions?limit=10")).json()
    times = [each["decided_at"] for each in page["decisions"]]
    assert len(times) == 10
    assert times == sorted(times, reverse=True)
    kept = [
        (await gateway.picker.page(f"/debug/decisions?worker={each}")).json()["kept"]
        for each in (0, 1)
    ]
    assert min(kept) > 0
    assert page["kept"] == sum(kept)
    for each in page["decisions"]:
        record = await gateway.picker.page(f"/debug/decisions/{each['request_id']}")
        assert record.status_code == 200
    missing = await gateway.picker.page("/debug/decisions/none-such")
    assert missing.status_code == 404
    assert "no decision of the request" in missing.json()["error"]


async def test_a_page_of_a_worker_that_does_not_exist_says_which_do(gateway: Site) -> None:
    response = await gateway.picker.page("/debug/endpoints?worker=2")
    assert response.status_code == 404
    assert response.json()["error"] == "there is no worker '2'; their numbers are from 0 to 1"


async def test_the_metrics_page_has_the_formats_and_filters_of_one_process(gateway: Site) -> None:
    url = f"http://127.0.0.1:{gateway.picker.ports['metrics']}/metrics"
    async with httpx.AsyncClient(timeout=15.0, trust_env=False, verify=False) as client:
        response = await client.get(
            f"{url}?name[]=llm_d_epp_worker_ready",
            headers={"accept": "application/openmetrics-text", "accept-encoding": "gzip"},
        )
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.headers["content-encoding"] == "gzip"
    assert response.text.splitlines()[-3:] == [
        'llm_d_epp_worker_ready{worker="0"} 1.0',
        'llm_d_epp_worker_ready{worker="1"} 1.0',
        "# EOF",
    ]


async def test_a_changing_call_reaches_both_workers(gateway: Site) -> None:
    path = "/debug/endpoints/drain?endpoint=endpoint-0"
    refused = await post(gateway, path, token="wrong")
    assert refused.status_code == 401
    assert (await post(gateway, path)).status_code == 200
    for worker in (0, 1):
        drained = [e["name"] for e in await gateway.picker.endpoints(worker) if e["draining"]]
        assert drained == ["default/endpoint-0"]
    assert "endpoint-0" not in await load(gateway, 20)
    assert (await post(gateway, f"{path}&undo=true")).status_code == 200


async def test_the_live_page_is_served_by_the_worker_that_leads(gateway: Site) -> None:
    page = await gateway.picker.page("/ui/")
    assert "<html" in page.text
    url = f"http://127.0.0.1:{gateway.picker.ports['metrics']}/debug/events"
    async with (
        httpx.AsyncClient(timeout=15.0, trust_env=False, verify=False) as client,
        client.stream("GET", url) as stream,
    ):
        assert stream.headers["content-type"] == "text/event-stream"
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                assert json.loads(line[6:])["pool"] == "default"
                break


async def test_a_hangup_reloads_both_and_a_bad_file_changes_neither(gateway: Site) -> None:
    config = gateway.folder / "config.yaml"
    reloads = "llm_d_epp_config_reloads_total"
    before = await metric(gateway, reloads)
    text = await asyncio.to_thread(config.read_text)
    await asyncio.to_thread(config.write_text, f"{text}\n# changed\n")
    gateway.picker.signal(signal.SIGHUP)
    await gateway.picker.until(reloads, before + 2)
    # A session plugin would have to place the requests of both workers.
    gate = "featureGates: [flowControl]\nextensions: {sessions: {plugins: {node-spread: {}}}}"
    await asyncio.to_thread(config.write_text, f"{text}\n{gate}\n")
    gateway.picker.signal(signal.SIGHUP)
    await gateway.picker.until("llm_d_epp_config_last_reload_successful", 0)
    faults = [(await gateway.picker.page(f"/debug/config?worker={w}")).json() for w in (0, 1)]
    why = "session plugin 'node-spread' decides where each request goes"
    assert all(why in str(fault) for fault in faults)
    await load(gateway, 20)
    await asyncio.to_thread(config.write_text, text)
    await gateway.picker.until("llm_d_epp_config_last_reload_successful", 1)
