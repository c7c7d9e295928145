"""The configuration of a running EPP is rewritten repeatedly without effect on requests."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from log_watch import watched_logs

from epp.config import DEFAULT_CONFIG, RollbackSettings
from epp.lab.load import LoadPlan, run
from epp.request_control import EndCause, RoutedRequest
from tools.harness.gateway import Gateway, running, until

pytestmark = pytest.mark.integration

REWRITES = 25
BROKEN_EVERY = 5

ROUTER = '''\
"""A profile handler as it ought to be, but for one line."""

from collections.abc import Mapping

import msgspec

from epp.scheduling import (
    CycleState,
    LLMRequest,
    ProfileHandler,
    ProfileResult,
    SchedulerProfile,
    SchedulingResult,
)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class Router(ProfileHandler):
    """Runs every profile, the first is the response."""

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def pick_profiles(
        self,
        request: LLMRequest,
        profiles: Mapping[str, SchedulerProfile],
        results: Mapping[str, ProfileResult],
        state: CycleState,
    ) -> Mapping[str, SchedulerProfile]:
        return {} if results else profiles

    def process_results(
        self, request: LLMRequest, results: Mapping[str, ProfileResult], state: CycleState
    ) -> SchedulingResult:
        primary = next(iter(results))
        return SchedulingResult(profiles=dict(results), primary=primary)
'''


def results(gateway: Gateway) -> dict[str, float]:
    """How the reloads went so far; all results are counted from 0 on."""
    return {
        sample.labels["result"]: sample.value
        for family in gateway.app.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "llm_d_epp_config_reloads_total" and sample.value
    }


def version(nth: int) -> str:
    """Return a configuration that differs from its neighbours in what it changes."""
    if nth % BROKEN_EVERY == BROKEN_EVERY - 1:
        return DEFAULT_CONFIG.replace("queue-scorer", f"queue-scorrer-{nth}")
    text = DEFAULT_CONFIG.replace("weight: 3", f"weight: {3 + nth / 100}")
    if nth % 2:
        text = text.replace("plugins:\n", "plugins:\n- {type: random-picker}\n", 1)
    return text


def reloaded(gateway: Gateway) -> Callable[[], bool]:
    """Return what tells whether the present file has been dealt with."""
    before = sum(results(gateway).values())
    return lambda: sum(results(gateway).values()) > before


async def test_rewrites_under_load_fail_no_request_and_lose_no_reservation(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    await asyncio.to_thread(path.write_text, DEFAULT_CONFIG)
    async with running(config=path) as gateway:
        prefixes = gateway.app.pool.graph.plugins["approx-prefix-cache-producer"]

        async def load(seed: int) -> tuple[int, float]:
            """Send a second of load; return the requests and the share of cached tokens."""
            report = await run(
                LoadPlan(
                    url=gateway.url,
                    model="tiny",
                    rate=60,
                    duration_seconds=1.0,
                    prompt_chars=2000,
                    prefixes=6,
                    prefix_chars=1600,
                    max_tokens=8,
                    seed=seed,
                )
            )
            assert report.errors == {}
            return report.succeeded, report.cached_tokens / report.prompt_tokens

        async def rewrite() -> None:
            for nth in range(REWRITES):
                done = reloaded(gateway)
                other = path.with_suffix(".new")
                await asyncio.to_thread(other.write_text, version(nth))
                await asyncio.to_thread(other.replace, path)
                await until(done)

        await load(0)
        rewriting = asyncio.create_task(rewrite())
        hit_rates = []
        for seed in count():
            served, hit_rate = await load(seed)
            assert served > 0
            hit_rates.append(hit_rate)
            if rewriting.done():
                break
        await rewriting
        assert results(gateway) == {
            "success": REWRITES - REWRITES // BROKEN_EVERY,
            "failure": REWRITES // BROKEN_EVERY,
        }
        assert min(hit_rates) > 0.2
        assert gateway.app.pool.graph.plugins["approx-prefix-cache-producer"] is prefixes
        await gateway.settled()
        gateway.assert_untouched()


async def test_reload_that_fails_requests_is_taken_back_by_itself(tmp_path: Path) -> None:
    path, plugin = tmp_path / "config.yaml", tmp_path / "router.py"
    text = DEFAULT_CONFIG.replace(
        "plugins:\n", "plugins:\n- {type: 'file:router.py:Router', name: router}\n", 1
    )
    await asyncio.to_thread(plugin.write_text, ROUTER)
    await asyncio.to_thread(path.write_text, text)
    rollback = RollbackSettings(requests=20)
    # Captured: to render the tracebacks for a terminal takes longer than all the rest.
    with watched_logs() as logs:
        async with running(config=path, rollback=rollback) as gateway:
            digest = gateway.app.pool.graph.types.digest
            assert (await gateway.completion()).status_code == 200
            broken = ROUTER.replace("next(iter(results))", "next(iter(result))")
            await asyncio.to_thread(plugin.write_text, broken)
            await until(lambda: results(gateway).get("success") == 1)
            statuses = []
            while "rollback" not in results(gateway):
                statuses.append((await gateway.completion()).status_code)
            assert set(statuses) == {500}
            assert gateway.app.pool.graph.types.digest == digest
            responses = await asyncio.gather(*(gateway.completion() for _ in range(20)))
            assert {response.status_code for response in responses} == {200}
            await gateway.settled()
            gateway.assert_untouched()
    errors = [each["event"] for each in logs.entries if each["log_level"] == "error"]
    assert "configuration taken back because requests failed with it" in errors


HANGING = '''\
"""A data producer whose data never comes, and an admitter that needs them."""

import asyncio
from typing import ClassVar

import msgspec

from epp.request_control.plugins import (
    PRODUCER_FAILURES,
    Admitter,
    AsyncDataProducer,
    RequestError,
)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """No parameters."""


class TooLateError(RequestError):
    status = 504
    code = "GatewayTimeout"


class Hanging(AsyncDataProducer):
    timeout_seconds: ClassVar[float] = 0.05

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def applies_to(self, request, state) -> bool:
        return True

    async def prepare_async(self, request, state) -> None:
        await asyncio.Event().wait()


class Strict(Admitter):
    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def admit(self, request, endpoints, state) -> None:
        if state.read(PRODUCER_FAILURES):
            raise TooLateError("no data")
'''


def with_plugins(*entries: str, in_profile: str = "") -> str:
    """Return the default configuration with more plugins."""
    text = DEFAULT_CONFIG
    for entry in entries:
        text = text.replace("plugins:\n", f"plugins:\n- {entry}\n", 1)
    member = f"  plugins:\n  - {{pluginRef: {in_profile}}}\n"
    return text.replace("  plugins:\n", member, 1) if in_profile else text


OF_ZONE = with_plugins(
    "{type: label-selector-filter, name: of-zone, parameters: {matchLabels: {zone: x}}}",
    in_profile="of-zone",
)
MESSAGES_ONLY = DEFAULT_CONFIG + "requestHandler: {parsers: [{pluginRef: anthropic-parser}]}\n"


def picks(gateway: Gateway) -> float | None:
    """Return the counted calls of the picker."""
    picker = "max-score-picker"
    labels = {"extension_point": "Picker", "plugin_type": picker, "plugin_name": picker}
    name = "llm_d_epp_plugin_duration_seconds_count"
    return gateway.app.metrics.registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("bad", "status", "reason"),
    [
        pytest.param(OF_ZONE, 429, "rejected-saturated", id="a filter that fits no endpoint"),
        pytest.param(MESSAGES_ONLY, 400, "BadRequest", id="no parser for the path"),
        pytest.param(
            with_plugins(
                "{type: 'file:hanging.py:Hanging', name: hanging}",
                "{type: 'file:hanging.py:Strict', name: strict}",
            ),
            504,
            "GatewayTimeout",
            id="a producer that hangs",
        ),
    ],
)
async def test_reload_that_refuses_requests_served_before_is_taken_back(
    bad: str, status: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    await asyncio.to_thread(path.write_text, DEFAULT_CONFIG)
    await asyncio.to_thread((tmp_path / "hanging.py").write_text, HANGING)
    with watched_logs() as logs:
        async with running(config=path) as gateway:
            assert (await gateway.completion()).status_code == 200
            assert picks(gateway) == 1
            await asyncio.to_thread(path.write_text, bad)
            await until(lambda: results(gateway).get("success") == 1)
            statuses = [(await gateway.completion()).status_code for _ in range(10)]
            assert statuses == [status] * 10
            assert picks(gateway) == 1  # dry runs do not count
            await until(lambda: "rollback" in results(gateway))
            responses = await asyncio.gather(*(gateway.completion() for _ in range(20)))
            assert {response.status_code for response in responses} == {200}
            await gateway.settled()
            gateway.assert_untouched()
    entry = only_error(logs.entries, "configuration taken back because requests failed with it")
    expected = {"regressions": 10, "requests": 10, "status": status, "reason": reason}
    assert expected.items() <= entry.items()
    assert entry["first_error"]


async def test_reload_while_the_pool_is_full_is_not_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    text = with_plugins(
        "{type: concurrency-detector, name: limit, parameters: {maxConcurrency: 1}}",
        in_profile="limit",
    )
    await asyncio.to_thread(path.write_text, text)
    with watched_logs() as logs:
        async with running(config=path) as gateway:
            held = [
                gateway.app.pool.director.handle(
                    request_id=f"held-{number}",
                    headers={":path": "/v1/completions"},
                    body=b'{"model": "tiny", "prompt": "x"}',
                    received_at=0.0,
                )
                for number in range(len(gateway.fleet.servers))
            ]
            for nth in (1, 2):  # the second one also shows that the first was not taken back
                done = reloaded(gateway)
                changed = text.replace("weight: 3", f"weight: 3.{nth}")
                await asyncio.to_thread(path.write_text, changed)
                await until(done)
                responses = [await gateway.completion() for _ in range(15)]
                assert {response.status_code for response in responses} == {429}
            assert results(gateway) == {"success": 2}
            for routed in held:
                assert isinstance(routed, RoutedRequest)
                routed.close(EndCause.COMPLETED)
            assert (await gateway.completion()).status_code == 200
    events = [each["event"] for each in logs.entries]
    assert "request refused that the previous configuration would have routed" not in events


def only_error(entries: Sequence[Mapping[str, Any]], event: str) -> Mapping[str, Any]:
    """Return the fields of the one log line of that event; it is an error."""
    (found,) = (each for each in entries if each["event"] == event)
    assert found["log_level"] == "error"
    return found
