"""The endpoint picker stopped while requests are undecided, and while clients do not read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGTERM

import httpx

from epp.config import DEFAULT_CONFIG
from epp.lab.fleet import EngineConfig, FleetConfig
from epp.lab.load.client import ConnectionPool
from tools.faults.processes import Setting, Site, site
from tools.faults.traffic import Kind, Response, Verdict, http_request
from tools.faults.trial import Pace, TrialOutcome

_UNDECIDED = 503
_REASON = (b"x-llm-d-request-dropped-reason", b"rejected-shutting-down")
_LONG = Kind("long stream", 4000, stream=True)

PLUGIN = '''\
"""Makes requests with the header x-wait wait for ever."""

import asyncio

import msgspec

from epp.request_control.plugins import AsyncDataProducer
from epp.scheduling import CycleState, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Waiting(AsyncDataProducer):
    """Waits."""

    timeout_seconds = 3600.0

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        return "x-wait" in request.headers

    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        await asyncio.Event().wait()
'''


def _prepare(folder: Path) -> tuple[str, ...]:
    (folder / "waiting.py").write_text(PLUGIN)
    config = folder / "config.yaml"
    plugin = "plugins:\n- {type: 'file:waiting.py:Waiting', name: waiting}\n"
    config.write_text(DEFAULT_CONFIG.replace("plugins:\n", plugin, 1))
    return ("--config-file", str(config))


async def stopped_while_undecided(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGTERM while bodies are half sent and decisions wait: every client gets the reason."""
    count = max(1, min(pace.requests // 4, 500))
    options = ("--drain-delay-seconds", "0", "--drain-timeout", pace.drain)
    async with site(setting, FleetConfig(endpoints=2), *options, prepare=_prepare) as made:
        address = httpx.URL(made.url)
        pool = ConnectionPool(address.host, address.port or 80)
        document = {"model": "tiny", "prompt": "x", "max_tokens": 1}
        whole = http_request(address.netloc.decode(), document, "x-wait: 1")
        half = http_request(address.netloc.decode(), document)[:-10]
        responses = [Response() for _ in range(2 * count)]

        async def ask(request: bytes, response: Response) -> None:
            connection = await pool.acquire()
            await connection.exchange(request, response)

        async with asyncio.TaskGroup() as tasks:
            for request, response in zip([whole, half] * count, responses, strict=True):
                tasks.create_task(ask(request, response), name="request")
            await made.picker.until("llm_d_epp_transport_streams", 2 * count)
            made.picker.signal(SIGTERM)
            status = await made.picker.wait()
        refused = [
            each.status == _UNDECIDED and _REASON in each.headers.items() for each in responses
        ]
        outcome = TrialOutcome(
            "SIGTERM, undecided",
            setting.name,
            Counter({Verdict.REFUSED: sum(refused), Verdict.WRONG: refused.count(False)}),
            {"half_sent": count, "deciding": count},
        )
        await pool.aclose()
        await _finish(outcome, made, status)
    outcome.expect("all are told that the picker stops", holds=all(refused))
    return outcome


async def _finish(outcome: TrialOutcome, made: Site, status: int) -> None:
    outcome.expect("exit status 0", holds=status == 0)
    for line in await made.picker.errors():
        outcome.broken.append(f"the log tells of no fault: {line}")


async def stopped_amid_slow_readers(setting: Setting, pace: Pace) -> TrialOutcome:
    """SIGTERM while clients do not read; they continue to read after the picker has ended."""
    count = max(1, min(pace.requests // 50, 16))
    # With the default number of KV blocks, long responses would preempt each other.
    engine = EngineConfig(
        max_num_seqs=64, step_seconds=0.001, decode_seconds_per_sequence=0.0, num_blocks=20_000
    )
    fleet = FleetConfig(endpoints=2, engine=engine)
    options = ("--drain-delay-seconds", "0", "--drain-timeout", pace.drain)
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(site(setting, fleet, *options))
        client = await asyncio.to_thread(httpx.AsyncClient, timeout=60.0, trust_env=False)
        await stack.enter_async_context(client)
        bodies: list[AsyncIterator[bytes]] = []
        responses = [Response() for _ in range(count)]
        for number, response in enumerate(responses):
            request = client.stream(
                "POST", f"{made.url}/v1/completions", json=_LONG.document(str(number))
            )
            incoming = await stack.enter_async_context(request)
            response.status = incoming.status_code
            bodies.append(incoming.aiter_bytes())
            response.on_body(await anext(bodies[-1]))
        servers = made.fleet.servers
        async with asyncio.timeout(60):
            # All responses are computed; the unread parts wait in Envoy and upstream of it.
            while sum(e.counters.completed for e in servers) < count:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.05)
        made.picker.signal(SIGTERM)
        status = await made.picker.wait()
        verdicts = Counter([await _read_on(*each) for each in zip(responses, bodies, strict=True)])
        outcome = TrialOutcome("SIGTERM, slow readers", setting.name, verdicts, {"readers": count})
        await _finish(outcome, made, status)
    outcome.expect("no response truncated", holds=set(verdicts) == {Verdict.WHOLE})
    return outcome


async def _read_on(response: Response, body: AsyncIterator[bytes]) -> Verdict:
    try:
        async for chunk in body:
            response.on_body(chunk)
    except httpx.TransportError:
        return response.verdict(_LONG, is_complete=False)
    return response.verdict(_LONG, is_complete=True)
