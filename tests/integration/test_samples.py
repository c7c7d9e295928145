"""Each sample of deploy/config/ through a real Envoy: the fake servers record what each did.

One gateway for all tests of a sample, with the fleet that the sample's comment asks for. Each test
has prompts of its own, so what others left in prefix indexes does not matter.
"""

import asyncio
import signal
import sys
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from epp.admin.decision_pages import PATH as DECISIONS
from epp.lab.fleet import FakeServer, WorkStage
from epp_plugins.data_producers.predicted_time import PredictedTimeProducer
from epp_plugins.state_keys import GPU_UTILIZATION
from tools.harness.gateway import NO_FAULTS, Gateway, until
from tools.harness.ports import free_ports

from .samples import FOLDER, ROOT, read_sample, running_sample

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

OTHERS = {"default", "lora", "shadow", "file-discovery", "dns"}
"""Samples of no fleet of their own; tests/deploy has their tests."""
SAMPLES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in OTHERS)
REPORTS = "llm_d_epp_orca_load_reports_total"
BATCH = {"x-llm-d-inference-objective": "batch"}
MANY = 32
"""So many requests at random go to both of two servers, but for once in 2 billion runs."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[Gateway]:
    """Run a sample for all tests that ask for it; in the end nothing is held or went wrong."""
    sample = await asyncio.to_thread(read_sample, request.param)
    async with running_sample(sample) as made:
        yield made
        await made.settled()
        made.assert_untouched()
        assert await made.faults() == NO_FAULTS


def runs(sample: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("gateway", [sample], indirect=True)


def text(about: str, chars: int = 4000) -> str:
    """Return a prompt that has no block in common with one about something else."""
    return f"All about {about}. " * (chars // len(f"All about {about}. ") + 1)


async def ask(
    gateway: Gateway, prompt: str = "Hello", headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send a prompt and wait until nothing of it is in flight."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    response = await gateway.client.post(
        f"{gateway.url}/v1/completions", json=body, headers=headers or {}
    )
    await gateway.settled()
    return response


async def served_by(gateway: Gateway, *args: Any, **kwargs: Any) -> str:
    response = await ask(gateway, *args, **kwargs)
    assert response.status_code == 200, response.text
    return response.headers["x-served-by"]


def stages_of(response: httpx.Response) -> list[tuple[str, str]]:
    """Return the stages of a request and who did them; decode alone leaves no header."""
    assert response.status_code == 200, response.text
    stages = response.headers.get("x-stages") or f"decode={response.headers['x-served-by']}"
    return [
        (stage, server) for stage, _, server in (each.partition("=") for each in stages.split(","))
    ]


def labelled(gateway: Gateway, key: str, value: str) -> set[str]:
    """Return the servers with a label."""
    return {
        endpoint.name.rpartition("/")[2]
        for endpoint in gateway.app.pool.store.snapshot
        if endpoint.labels.get(key) == value
    }


def with_role(gateway: Gateway, role: str) -> set[str]:
    return labelled(gateway, "llm-d.ai/role", role)


def done(gateway: Gateway, stage: WorkStage) -> int:
    return sum(server.counters.stages[stage] for server in gateway.fleet.servers)


def server_of(gateway: Gateway, name: str) -> FakeServer:
    (server,) = (each for each in gateway.fleet.servers if each.name == name)
    return server


async def report_waiting(gateway: Gateway, *counts: int) -> None:
    """Let the servers report so many waiting requests, and wait until the picker has seen it."""
    for server, count in zip(gateway.fleet.servers, counts, strict=True):
        server.engine.config = replace(server.engine.config, phantom_waiting=count)
    await until(
        lambda: (
            [e.metrics.waiting_requests for e in gateway.app.pool.store.snapshot] == list(counts)
        )
    )


@dataclass(slots=True)
class Stranger:
    """Somebody whom nobody should talk to."""

    address: str
    connections: int = 0


@pytest_asyncio.fixture(loop_scope="module")
async def stranger() -> AsyncIterator[Stranger]:
    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        known.connections += 1
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    known = Stranger(f"{host}:{port}")
    async with listener:
        yield known


# --- prefixes ---------------------------------------------------------------------------------


@runs("optimized-baseline")
async def test_new_prompts_take_turns_and_known_ones_go_back(gateway: Gateway) -> None:
    prompts = [text(f"the number {number}", 1000) for number in range(8)]
    turns = [await served_by(gateway, prompt) for prompt in prompts]
    assert sorted(turns[:4]) == [f"endpoint-{index}" for index in range(4)]
    assert turns[4:] == turns[:4]
    assert [await served_by(gateway, f"{prompt} And?") for prompt in prompts] == turns


@runs("approx-prefix-cache")
async def test_questions_about_a_document_go_to_its_holder_and_find_it_in_cache(
    gateway: Gateway,
) -> None:
    documents = [text(f"town {number}", 2048) for number in range(6)]
    for document in documents:
        first = await ask(gateway, f"{document} Who lives there?")
        for question in ("What is sold there?", "Where is it?"):
            response = await ask(gateway, f"{document} {question}")
            assert response.headers["x-served-by"] == first.headers["x-served-by"]
            # 2048 characters are 512 tokens, in whole blocks of the server.
            assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512


# --- predicted-time.yaml ----------------------------------------------------------------------


async def long_response(gateway: Gateway, turn: int) -> str:
    """Send a prompt of its own whose response lasts for some scrapes; return its id."""
    request_id = f"turn-{turn}"
    async with gateway.client.stream(
        "POST",
        f"{gateway.url}/v1/completions",
        json={
            "model": "tiny",
            "prompt": text(f"number {turn}", 400 * (1 + turn % 8)),
            "max_tokens": 1000,
            "ignore_eos": True,
            "stream": True,
        },
        headers={"x-request-id": request_id},
    ) as response:
        await response.aread()
    assert response.status_code == 200
    await gateway.settled()
    return request_id


def predictor(gateway: Gateway) -> PredictedTimeProducer:
    """Return the producer of predicted times."""
    producer = gateway.app.pool.graph.plugins["predicted-time-producer"]
    assert isinstance(producer, PredictedTimeProducer)
    return producer


@runs("predicted-time")
async def test_predictions_are_learned_from_the_servers_counters_and_explained(
    gateway: Gateway,
) -> None:
    model = predictor(gateway).model
    for turn in range(3):
        await asyncio.gather(*(long_response(gateway, 8 * turn + number) for number in range(8)))
    assert model.trust.samples >= 16
    assert sum(each.decoding for each in model.endpoints.values()) == 0
    record = gateway.app.pool.explanations.pages()[DECISIONS].item
    assert record is not None
    first, *_ = msgspec.to_builtins(record(await long_response(gateway, 100)))["notes"]
    # Whether they are trusted depends on how long the servers really took.
    assert "s expected: " in first or "not trusted" in first


@runs("predicted-time-pd")
async def test_predictions_are_learned_where_the_prompts_are_computed(gateway: Gateway) -> None:
    model = predictor(gateway).model
    turns = [turn for turn in range(64) if turn % 8 > 4]  # 2400 to 3200 characters
    for start in range(0, len(turns), 8):
        await asyncio.gather(*(long_response(gateway, turn) for turn in turns[start : start + 8]))
    assert model.trust.samples >= 16
    learned_at = {name for name, each in model.endpoints.items() if each.first_tokens}
    assert learned_at == {f"default/{name}" for name in with_role(gateway, "prefill")}


# --- sessions ---------------------------------------------------------------------------------


@runs("session-affinity")
async def test_a_token_that_is_sent_back_leads_to_the_same_server_whatever_the_load(
    gateway: Gateway,
) -> None:
    first = await ask(gateway)
    token, name = first.headers["x-session-token"], first.headers["x-served-by"]
    assert b64decode(token).decode() == f"default/{name}"
    waiting = [50 if server.name == name else 0 for server in gateway.fleet.servers]
    await report_waiting(gateway, *waiting)
    for turn in range(6):
        response = await ask(gateway, f"turn {turn}", {"x-session-token": token})
        assert response.headers["x-served-by"] == name
        token = response.headers["x-session-token"]
    assert name not in {await served_by(gateway, f"nobody {turn}") for turn in range(6)}


@runs("session-affinity")
@pytest.mark.parametrize(
    "token",
    ["nonsense!", b64encode(b"default/endpoint-99").decode()],
    ids=["not base64", "a server that is gone"],
)
async def test_a_token_of_no_server_is_none(gateway: Gateway, token: str) -> None:
    response = await ask(gateway, headers={"x-session-token": token})
    assert response.status_code == 200
    server = response.headers["x-served-by"]
    assert b64decode(response.headers["x-session-token"]).decode() == f"default/{server}"


@runs("session-id")
@pytest.mark.parametrize("header", ["x-session-id", "x-claude-code-session-id"])
async def test_a_session_stays_until_its_server_is_full_and_then_moves_for_good(
    gateway: Gateway, header: str
) -> None:
    session = {header: f"a session by {header}"}
    home = await served_by(gateway, headers=session)
    waiting = [40 if server.name == home else 0 for server in gateway.fleet.servers]
    await report_waiting(gateway, *waiting)
    assert {await served_by(gateway, f"{turn}", session) for turn in range(6)} == {home}
    waiting = [90 if server.name == home else 0 for server in gateway.fleet.servers]
    await report_waiting(gateway, *waiting)
    other = await served_by(gateway, headers=session)
    assert other != home
    await report_waiting(gateway, 0, 0, 0, 0)
    assert {await served_by(gateway, f"{turn}", session) for turn in range(6)} == {other}


@runs("session-id")
async def test_the_session_header_comes_before_that_of_an_agent(gateway: Gateway) -> None:
    home = await served_by(gateway, headers={"x-session-id": "first"})
    waiting = [90 if server.name == home else 0 for server in gateway.fleet.servers]
    await report_waiting(gateway, *waiting)
    other = await served_by(gateway, headers={"session_id": "second"})
    await report_waiting(gateway, 0, 0, 0, 0)
    both = {"x-session-id": "first", "session_id": "second"}
    assert (other != home, await served_by(gateway, headers=both)) == (True, home)


# --- stages -----------------------------------------------------------------------------------


@runs("pd")
async def test_an_uncached_prompt_is_prefilled_elsewhere_and_a_cached_one_is_not(
    gateway: Gateway,
) -> None:
    prefills = done(gateway, WorkStage.PREFILL)
    first = await ask(gateway, text("the first of two"))
    (prefill, prefiller), (decode, decoder) = stages_of(first)
    assert (prefill, decode) == ("prefill", "decode")
    assert prefiller in with_role(gateway, "prefill")
    assert decoder in with_role(gateway, "decode")
    usage = first.json()["usage"]
    # All but the last token came from the prefill server.
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    again = await ask(gateway, text("the first of two"))
    assert stages_of(again) == [("decode", decoder)]
    assert done(gateway, WorkStage.PREFILL) == prefills + 1
    assert server_of(gateway, prefiller).counters.stages[WorkStage.DECODE] == 0


@runs("pd")
async def test_a_short_prompt_goes_without_prefill(gateway: Gateway) -> None:
    # 2000 characters are 500 tokens and a few; 512 would be prefilled.
    ((stage, server),) = stages_of(await ask(gateway, text("a short one", 2000)))
    assert stage == "decode"
    assert server in with_role(gateway, "decode")


@runs("pd")
@pytest.mark.parametrize(
    ("chars", "wanted"), [(100, ["decode"]), (4000, ["prefill", "decode"])], ids=["short", "long"]
)
@pytest.mark.parametrize("header", ["x-prefiller-host-port", "x-encoder-hosts-ports"])
async def test_a_server_that_the_client_names_for_a_stage_is_never_asked(
    gateway: Gateway, stranger: Stranger, header: str, chars: int, wanted: list[str]
) -> None:
    prompt = text(f"{chars} characters with {header}", chars)
    stages = stages_of(await ask(gateway, prompt, {header: stranger.address}))
    assert [stage for stage, _ in stages] == wanted
    assert {server for stage, server in stages if stage != "decode"} <= with_role(
        gateway, "prefill"
    )
    assert stranger.connections == 0


@runs("pd")
async def test_a_dead_prefill_server_costs_the_requests_that_it_was_chosen_for(
    gateway: Gateway,
) -> None:
    stages = stages_of(await ask(gateway, text("who is first to die")))
    dead = server_of(gateway, stages[0][1])
    (alive,) = with_role(gateway, "prefill") - {dead.name}
    cached = text("what is known already")
    holder = stages_of(await ask(gateway, cached))[-1]
    await dead.refuse()
    failed = 0
    for number in range(MANY):
        response = await ask(gateway, text(f"something about the dead {number}"))
        if response.status_code == 200:
            assert stages_of(response)[0] == ("prefill", alive)
        else:
            # The decode server's sidecar says whom it could not reach.
            assert response.status_code == 502
            assert dead.address in response.json()["error"]["message"]
            failed += 1
    assert 0 < failed < MANY
    assert stages_of(await ask(gateway, cached)) == [holder]
    assert [stage for stage, _ in stages_of(await ask(gateway))] == ["decode"]
    await dead.start()
    for number in range(4):
        revived = stages_of(await ask(gateway, text(f"something about the living {number}")))
        assert [stage for stage, _ in revived] == ["prefill", "decode"]


@runs("pd-topology")
async def test_the_prefill_is_in_the_zone_of_the_decode(gateway: Gateway) -> None:
    zones = {
        server: zone
        for zone in "ab"
        for server in labelled(gateway, "topology.kubernetes.io/zone", zone)
    }
    pairs = set()
    for number in range(MANY):
        (_, prefiller), (_, decoder) = stages_of(await ask(gateway, text(f"zone {number}")))
        assert prefiller in with_role(gateway, "prefill")
        pairs.add((zones[prefiller], zones[decoder]))
    assert pairs == {("a", "a"), ("b", "b")}


@runs("pd-joint")
async def test_the_pair_on_one_host_is_chosen_before_equal_ones(gateway: Gateway) -> None:
    pair = labelled(gateway, "kubernetes.io/hostname", "node-1")
    prefiller, decoder = (pair & with_role(gateway, role) for role in ("prefill", "decode"))
    for number in range(6):
        stages = stages_of(await ask(gateway, text(f"pair {number}")))
        assert [{server} for _, server in stages] == [prefiller, decoder]


@runs("epd")
@pytest.mark.parametrize(
    ("chars", "picture", "wanted"),
    [
        (100, False, ["decode"]),
        (4000, False, ["prefill", "decode"]),
        (100, True, ["encode", "encode", "decode"]),
        (4000, True, ["encode", "encode", "prefill", "decode"]),
    ],
    ids=["short text", "long text", "picture", "picture and long text"],
)
async def test_a_request_goes_through_the_stages_that_it_needs(
    gateway: Gateway, chars: int, picture: bool, wanted: list[str]
) -> None:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text(f"{chars} {picture}", chars)}]
    if picture:
        parts.append({"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}})
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 2,
    }
    before = {stage: done(gateway, stage) for stage in WorkStage}
    response = await gateway.client.post(f"{gateway.url}/v1/chat/completions", json=body)
    stages = stages_of(response)
    assert [stage for stage, _ in stages] == wanted
    for stage, server in stages:
        assert server in with_role(gateway, stage)
    asked = {stage.value: done(gateway, stage) - before[stage] for stage in WorkStage}
    assert {stage: count for stage, count in asked.items() if count} == Counter(wanted)
    if picture:
        assert stages[0] != stages[1]


async def test_ranks_behind_one_port_are_told_apart(stranger: Stranger) -> None:
    sample = await asyncio.to_thread(read_sample, "data-parallel")
    assert "--first-port=8000" in " ".join(sample.words)
    ports = tuple(await asyncio.to_thread(free_ports, sample.fleet_size))

    def change(config: str) -> str:
        assert "primaryPort: 8000" in config
        return config.replace("primaryPort: 8000", f"primaryPort: {ports[0]}")

    async with running_sample(sample, ports=ports, change=change) as gateway:
        forged = {"x-data-parallel-host-port": stranger.address}
        for rank in (2, 1, 3):
            await report_waiting(gateway, *(0 if each == rank else 50 for each in range(4)))
            response = await ask(gateway, text(f"rank {rank}"), forged)
            assert stages_of(response) == [
                ("forwarded", "endpoint-0"),
                ("decode", f"endpoint-{rank}"),
            ]
        # The rank at the primary port itself is asked for nothing else than to decode.
        await report_waiting(gateway, 0, 50, 50, 50)
        assert stages_of(await ask(gateway, headers=forged)) == [("decode", "endpoint-0")]
        await report_waiting(gateway, 0, 0, 0, 0)
        for rank in (1, 2, 3):
            assert await served_by(gateway, text(f"rank {rank}")) == f"endpoint-{rank}"
        assert stranger.connections == 0
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS


# --- labels and headers -----------------------------------------------------------------------


@runs("context-length")
async def test_prompts_go_to_servers_made_for_their_length(gateway: Gateway) -> None:
    key = "llm-d.ai/context-length-range"
    short, long = labelled(gateway, key, "0-1024"), labelled(gateway, key, "1025-8192")
    for number in range(8):
        assert await served_by(gateway, text(f"short {number}", 1000)) in short
        assert await served_by(gateway, text(f"long {number}", 8000)) in long


@runs("header-routing")
@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, {"endpoint-2", "endpoint-3"}),
        ({"EPP-Profile": "prefill"}, {"endpoint-0", "endpoint-1"}),
        ({"x-preferred-zone": "b"}, {"endpoint-3"}),
        ({"EPP-Profile": "prefill", "x-preferred-zone": "a"}, {"endpoint-0"}),
        ({"EPP-Profile": "decode", "x-preferred-zone": "nowhere"}, {"endpoint-2", "endpoint-3"}),
    ],
    ids=["no header", "profile", "zone", "profile and zone", "a zone without servers"],
)
async def test_headers_choose_the_servers(
    gateway: Gateway, headers: dict[str, str], wanted: set[str]
) -> None:
    assert {await served_by(gateway, f"{turn}", headers) for turn in range(MANY)} == wanted


@runs("header-routing")
async def test_a_profile_that_is_not_there_is_the_clients_mistake(gateway: Gateway) -> None:
    response = await ask(gateway, headers={"EPP-Profile": "encode"})
    assert response.status_code == 400
    assert "'decode', 'prefill'" in response.json()["error"]["message"]


# --- load -------------------------------------------------------------------------------------


@runs("utilization-limits")
async def test_limits_move_the_load_and_give_way_when_all_are_exceeded(gateway: Gateway) -> None:
    async def turns() -> set[str]:
        return {await served_by(gateway, f"turn {turn}") for turn in range(20)}

    await report_waiting(gateway, 50, 4, 4)
    assert await turns() <= {"endpoint-1", "endpoint-2"}
    await report_waiting(gateway, 4, 20, 50)
    assert await turns() == {"endpoint-0"}
    await report_waiting(gateway, 50, 20, 50)
    async with hanging(gateway, 30):
        # Only our own requests count now, so all three get as many.
        assert {server.counters.in_flight for server in gateway.fleet.servers} == {10}


@runs("utilization-limits")
async def test_a_full_pool_refuses_what_can_wait_and_takes_the_rest(gateway: Gateway) -> None:
    await report_waiting(gateway, 0, 0, 0)
    async with hanging(gateway, 95) as asking:
        asking.append(asyncio.create_task(ask(gateway, headers=BATCH)))
        await until(lambda: gateway.in_flight() == 96)
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}
        url = f"{gateway.url}/v1/completions"
        refused = await gateway.client.post(url, json=body, headers=BATCH)
        assert refused.status_code == 429
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        asking.append(asyncio.create_task(gateway.completion()))
        await until(lambda: gateway.in_flight() == 97)
    assert (await ask(gateway, headers=BATCH)).status_code == 200


@asynccontextmanager
async def hanging(gateway: Gateway, count: int) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Have so many requests in flight that nobody answers; more may be added."""
    servers = gateway.fleet.servers
    for server in servers:
        server.faults.hang_generation = True
    prompts = [f"request {number}" for number in range(count)]
    asking = [asyncio.create_task(gateway.completion(prompt=prompt)) for prompt in prompts]
    await until(lambda: sum(each.counters.in_flight for each in servers) == count)
    try:
        yield asking
    finally:
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        for server in servers:
            server.faults.hang_generation = False
        await gateway.settled()
        await until(lambda: not any(each.counters.in_flight for each in servers))


async def test_the_server_with_the_idlest_gpu_is_chosen() -> None:
    sample = await asyncio.to_thread(read_sample, "gpu-utilization")
    busy = [90, 10, 50]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                page = "".join(
                    f'DCGM_FI_DEV_GPU_UTIL{{gpu="{gpu}",pod="endpoint-{index}"}} {percent}\n'
                    for index, value in enumerate(busy)
                    for gpu, percent in enumerate((value // 2, value))  # the busier one counts
                )
                writer.write(
                    f"HTTP/1.1 200 OK\r\ncontent-length: {len(page)}\r\n\r\n{page}".encode()
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    exporter = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = exporter.sockets[0].getsockname()[1]

    def change(config: str) -> str:
        assert "{port: 9400}" in config
        return config.replace("{port: 9400}", f"{{port: {port}}}")

    async with exporter, running_sample(sample, change=change) as gateway:

        async def turns() -> set[str]:
            pool = gateway.app.pool.store.snapshot
            await until(
                lambda: (
                    [each.attribute(GPU_UTILIZATION) for each in pool]
                    == [percent / 100 for percent in busy]
                )
            )
            return {await served_by(gateway, f"turn {turn}") for turn in range(6)}

        assert await turns() == {"endpoint-1"}
        busy[1] = 80
        assert await turns() == {"endpoint-2"}
        # 2 * 0.5 + 1 * 0 against 2 * 0.2 + 1: the queue outweighs 30 % of a GPU.
        await report_waiting(gateway, 0, 0, 9)
        assert await turns() == {"endpoint-1"}
        await report_waiting(gateway, 0, 0, 0)
        gateway.assert_untouched()


@runs("probabilistic-admitter")
async def test_sheddable_requests_are_turned_away_from_a_busy_pool_only(gateway: Gateway) -> None:
    # 3 of 5 are a saturation of 0.6: 0.6**5 * 300 = 23, so all of them.
    await report_waiting(gateway, 3, 3)
    batch = [await ask(gateway, headers=BATCH) for _ in range(10)]
    assert {response.status_code for response in batch} == {429}
    assert {(await ask(gateway)).status_code for _ in range(10)} == {200}
    await report_waiting(gateway, 0, 0)
    assert {(await ask(gateway, headers=BATCH)).status_code for _ in range(10)} == {200}


@runs("load-reports")
async def test_every_response_tells_the_load_of_its_server(gateway: Gateway) -> None:
    responses = [await ask(gateway, f"report {number}") for number in range(5)]
    assert not any("endpoint-load-metrics" in response.headers for response in responses)
    page = (await gateway.client.get(f"http://127.0.0.1:{gateway.ports.metrics}/metrics")).text
    used = [line for line in page.splitlines() if line.startswith(f"{REPORTS}{{")]
    assert [line.rpartition(" ")[2] for line in used if 'outcome="used"' in line] == ["5.0"]
    assert len(used) == 1


@runs("weighted-random")
async def test_servers_are_drawn_by_their_scores_and_a_dead_one_costs_nothing(
    gateway: Gateway,
) -> None:
    # 2 * 0 + 1 = 1 against 2 * 1 + 1 = 3 each: 1 of 7, 43 of 300.
    drawn = Counter([await served_by(gateway, f"turn {turn}") for turn in range(300)])
    assert 20 < drawn["endpoint-0"] < 70
    assert min(drawn["endpoint-1"], drawn["endpoint-2"]) > 90
    dead = gateway.fleet.servers[1]
    await dead.refuse()
    responses = [await ask(gateway, f"without one {turn}") for turn in range(30)]
    assert {response.status_code for response in responses} == {200}
    assert {response.headers["x-served-by"] for response in responses} == {
        "endpoint-0",
        "endpoint-2",
    }
    await dead.start()


@runs("decision-tree")
async def test_the_tree_decides_about_sheddable_requests_and_nobody_before_it(
    gateway: Gateway,
) -> None:
    # Server 0 is idle, the two others are full. The mean of the pool is far beyond full.
    responses = [await ask(gateway, headers=BATCH) for _ in range(10)]
    assert [response.status_code for response in responses] == [200] * 10, responses[0].text
    assert {response.headers["x-served-by"] for response in responses} == {"endpoint-0"}
    await report_waiting(gateway, 50, 50, 50)
    refused = await ask(gateway, headers=BATCH)
    assert refused.status_code == 429
    assert "by-priority dropped the request" in refused.text
    assert (await ask(gateway)).status_code == 200


# --- the command lines ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
async def test_the_comment_says_how_to_try_the_sample(name: str) -> None:
    sample = await asyncio.to_thread(read_sample, name)
    assert sample.config_file == f"deploy/config/{name}.yaml"
    assert sample.fleet_size >= 2
    assert all(each.is_dir() for each in sample.objects)
    assert not {*sample.labels, *sample.busy} - set(range(sample.fleet_size))


async def test_the_command_in_a_comment_runs_the_sample() -> None:
    sample = await asyncio.to_thread(read_sample, "pd")
    ports = [f"--{name}=0" for name in ("port", "grpc-port", "grpc-health-port", "metrics-port")]
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "up", *sample.words, *ports),
        "--fleet-arg=--time-scale=0.05",
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert up.stdout is not None
    url = ""
    try:
        while not url:
            line = (await up.stdout.readline()).decode()
            assert line, "it ended before the gateway was ready"
            if "curl -i http://" in line:
                url = line.partition("curl -i ")[2].split()[0]
        body = {"model": "tiny", "prompt": text("a whole gateway"), "max_tokens": 2}
        async with await asyncio.to_thread(
            httpx.AsyncClient, trust_env=False, timeout=20
        ) as client:
            first = await client.post(url, json=body)
            again = await client.post(url, json=body)
    finally:
        up.send_signal(signal.SIGINT)
        await up.communicate()
    assert [stage for stage, _ in stages_of(first)] == ["prefill", "decode"]
    assert stages_of(again) == stages_of(first)[1:]
    assert up.returncode == 0
