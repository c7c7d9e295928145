"""KV events over ZeroMQ, read by a real subscriber and compared with a recording of vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from epp.lab.fleet import (
    EngineConfig,
    FakeServer,
    Fleet,
    FleetConfig,
    FleetConfigError,
    KvEventFormat,
    KvEventsConfig,
    PortTakenError,
    ServerFaults,
)
from epp.lab.fleet.tokenizer import token_ids

DATA = Path(__file__).parent / "data"
MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]
EVENTS = KvEventsConfig()
PROMPT = "".join(f"{number:04}" for number in range(100))
"""100 tokens: 6 blocks of 16 tokens, and 4 tokens."""
Message = tuple[str, int, list[Any]]


def decoded(frames: list[bytes]) -> Message:
    topic, number, payload = frames
    return topic.decode(), int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)


class Sockets:
    """The ZeroMQ sockets of a test."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._made: list[zmq.asyncio.Socket] = []

    def connected(self, kind: int, endpoint: object) -> zmq.asyncio.Socket:
        made = self._context.socket(kind)
        self._made.append(made)
        made.connect(str(endpoint))
        return made

    def close(self) -> None:
        for made in self._made:
            made.close(linger=0)
        self._context.term()


class Subscriber:
    """A subscriber of one server, and a client of its replay socket."""

    def __init__(self, sockets: Sockets, server: FakeServer, rank: int = 0) -> None:
        self.source = server.event_sources()[rank]
        self._events = sockets.connected(zmq.SUB, self.source["endpoint"])
        self._events.set(zmq.SUBSCRIBE, b"")
        self._replay = sockets.connected(zmq.DEALER, self.source["replay_endpoint"])

    async def message(self) -> Message:
        async with asyncio.timeout(10):
            return decoded(await self._events.recv_multipart())

    async def replayed(self, start: int) -> list[int]:
        """Return the sequence numbers that the server still has from `start` on."""
        numbers: list[int] = []
        await self._replay.send_multipart([b"", start.to_bytes(8, "big")])
        async with asyncio.timeout(10):
            while True:
                _, number, payload = await self._replay.recv_multipart()
                if number == b"\xff" * 8:
                    assert payload == b""
                    return numbers
                assert msgspec.msgpack.decode(payload)[1]
                numbers.append(int.from_bytes(number, "big"))


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    made = Sockets()
    yield made
    made.close()


async def subscribed(sockets: Sockets, fleet: Fleet, client: httpx.AsyncClient) -> Subscriber:
    """Subscribe, and send requests until the subscription holds: ZeroMQ does not tell when."""
    subscriber = Subscriber(sockets, fleet.servers[0])
    first = asyncio.create_task(subscriber.message())
    while not first.done():
        await complete(client, uuid4().hex * 2, max_tokens=1)
        await asyncio.wait({first}, timeout=0.01)
    last = uuid4().hex * 2
    await complete(client, last, max_tokens=1)
    _, _, (_, events, _) = first.result()
    while token_ids(last.encode()) not in [tokens_of(event) for event in events]:
        _, _, (_, events, _) = await subscriber.message()
    return subscriber


def tokens_of(event: Any) -> list[int]:
    tokens: list[int] = event["token_ids"] if isinstance(event, dict) else event[3]
    return tokens


async def complete(client: httpx.AsyncClient, prompt: str = PROMPT, **fields: Any) -> None:
    response = await client.post("/v1/completions", json={"prompt": prompt, **fields})
    assert response.status_code == 200


def recorded_events() -> dict[str, dict[str, Any]]:
    """Return a recorded event of each type."""
    lines = (DATA / "kv_events.jsonl").read_text().splitlines()
    return {event["type"]: event for line in lines for event in json.loads(line)["payload"][1]}


async def test_maps_have_the_fields_of_the_recording(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    engine = EngineConfig(num_blocks=32, max_model_len=512)
    fleet = await make_fleet(kv_events=EVENTS, engine=engine)
    client = make_client(fleet)
    subscriber = await subscribed(sockets, fleet, client)
    await complete(client, max_tokens=1)
    topic, _, (_, events, rank) = await subscriber.message()
    assert (topic, rank) == (f"kv@{fleet.addresses[0]}@tiny", 0)
    stored = events[-1]
    recorded = recorded_events()
    assert list(stored) == list(recorded["BlockStored"])
    assert len(stored["block_hashes"]) == 6
    assert stored["token_ids"] == token_ids(PROMPT.encode())[:96]
    assert (stored["parent_block_hash"], stored["block_size"]) == (None, 16)
    # 32 blocks hold 4 such prompts; the fifth evicts the oldest blocks.
    for number in range(5):
        await complete(client, f"{number}{PROMPT}", max_tokens=1)
    removed: dict[str, Any] = {}
    while not removed:
        _, _, (_, events, _) = await subscriber.message()
        removed = next((each for each in events if each["type"] == "BlockRemoved"), {})
    assert list(removed) == list(recorded["BlockRemoved"])


async def test_the_next_turn_continues_the_blocks_of_the_response(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    fleet = await make_fleet(kv_events=EVENTS, engine=EngineConfig(adapters=("ad1",)))
    client = make_client(fleet)
    subscriber = await subscribed(sockets, fleet, client)
    response = await client.post(
        "/v1/completions", json={"model": "ad1", "prompt": PROMPT, "max_tokens": 29}
    )
    text = PROMPT + response.json()["choices"][0]["text"]
    tokens: list[int] = []
    hashes: list[int] = []
    while len(hashes) < 8:  # 128 tokens are computed, the last one is not
        _, _, (_, events, _) = await subscriber.message()
        for event in events:
            assert (event["lora_name"], event["lora_id"]) == ("ad1", 1)
            assert event["parent_block_hash"] == (hashes[-1] if hashes else None)
            tokens += event["token_ids"]
            hashes += event["block_hashes"]
    assert tokens == token_ids(text.encode())[:128]


async def test_arrays_have_the_type_first(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    fleet = await make_fleet(kv_events=KvEventsConfig(format=KvEventFormat.ARRAY))
    client = make_client(fleet)
    subscriber = await subscribed(sockets, fleet, client)
    await complete(client, max_tokens=1)
    (
        _,
        _,
        (_, ((kind, hashes, parent, tokens, size, lora, medium, name),), _),
    ) = await subscriber.message()
    assert (kind, len(hashes), parent, len(tokens)) == ("BlockStored", 6, None, 96)
    assert (size, lora, medium, name) == (16, None, "GPU", None)


async def test_a_gap_is_closed_by_a_replay(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    fleet = await make_fleet(kv_events=EVENTS)
    server, client = fleet.servers[0], make_client(fleet)
    subscriber = await subscribed(sockets, fleet, client)
    await complete(client, f"a{PROMPT}", max_tokens=1)
    _, last, _ = await subscriber.message()
    await server.inject(ServerFaults(kv_events_lost_share=1.0))
    await complete(client, f"b{PROMPT}", max_tokens=1)
    await server.inject(ServerFaults())
    await complete(client, f"c{PROMPT}", max_tokens=1)
    assert (await subscriber.message())[1] == last + 2
    assert await subscriber.replayed(last) == [last, last + 1, last + 2]
    assert await subscriber.replayed(last + 3) == []


async def test_messages_change_places(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    fleet = await make_fleet(kv_events=EVENTS)
    server, client = fleet.servers[0], make_client(fleet)
    subscriber = await subscribed(sockets, fleet, client)
    await server.inject(ServerFaults(kv_events_swapped_share=1.0))
    for number in range(4):
        await complete(client, f"{number}{PROMPT}", max_tokens=1)
    numbers = [(await subscriber.message())[1] for _ in range(4)]
    first = min(numbers)
    assert numbers == [first + 1, first, first + 3, first + 2]


@pytest.mark.parametrize(
    "faults",
    [ServerFaults(kv_events_restarts=1), ServerFaults(restarts=1)],
    ids=["publisher", "server"],
)
async def test_numbers_begin_with_0_after_a_restart(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets, faults: ServerFaults
) -> None:
    fleet = await make_fleet(kv_events=EVENTS)
    server = fleet.servers[0]
    before = await subscribed(sockets, fleet, make_client(fleet))
    await server.inject(faults)
    client = make_client(fleet)
    after = await subscribed(sockets, fleet, client)
    assert after.source == before.source
    await complete(client, max_tokens=1)
    _, number, _ = await after.message()
    assert await after.replayed(0) == list(range(number + 1))


async def test_a_request_goes_on_while_the_publisher_restarts(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    engine = EngineConfig(step_seconds=0.01)
    fleet = await make_fleet(kv_events=EVENTS, time_scale=1.0, engine=engine)
    server = fleet.servers[0]
    request = asyncio.create_task(complete(make_client(fleet), max_tokens=20))
    async with asyncio.timeout(10):
        while not server.engine.num_running:  # noqa: ASYNC110 -- a counter has no event
            await asyncio.sleep(0)
    await server.inject(ServerFaults(kv_events_restarts=1))
    await request
    # The block of the prompt's end and the response, after a restart without the prompt's others.
    assert await Subscriber(sockets, server).replayed(0) == [0]


async def test_each_rank_has_its_own_events(
    make_fleet: MakeFleet, make_client: MakeClient, sockets: Sockets
) -> None:
    fleet = await make_fleet(kv_events=EVENTS, ranks=2, endpoints=2)
    server = fleet.servers[1]
    assert [each["data_parallel_rank"] for each in server.event_sources()] == [0, 1]
    client = make_client(fleet, 1)
    client.headers["x-data-parallel-rank"] = "1"
    await complete(client, max_tokens=1)
    assert await Subscriber(sockets, server, rank=0).replayed(0) == []
    assert await Subscriber(sockets, server, rank=1).replayed(0) == [0]


async def test_sources_name_the_sockets(make_fleet: MakeFleet, make_client: MakeClient) -> None:
    fleet = await make_fleet(kv_events=EVENTS)
    (source,) = (await make_client(fleet).get("/kv_event_sources")).json()
    assert source["data_parallel_rank"] == 0
    assert source["endpoint"].startswith("tcp://127.0.0.1:")
    assert source["replay_endpoint"] != source["endpoint"]
    assert (await make_client(await make_fleet()).get("/kv_event_sources")).json() == []


async def test_odd_replay_requests_are_ignored(make_fleet: MakeFleet, sockets: Sockets) -> None:
    fleet = await make_fleet(kv_events=EVENTS)
    subscriber = Subscriber(sockets, fleet.servers[0])
    for frames in ([b""], [b"", b"short"], [b"", b"a", b"b", b"c"]):
        await subscriber._replay.send_multipart(frames)
    assert await subscriber.replayed(0) == []


async def test_a_taken_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epp.lab.fleet.kv_publisher._BIND_SECONDS", 0.0)
    async with Fleet(FleetConfig(endpoints=1, kv_events=EVENTS)) as fleet:
        (source,) = fleet.servers[0].event_sources()
        port = int(str(source["endpoint"]).rpartition(":")[2])
        other = Fleet(FleetConfig(endpoints=1, kv_events=KvEventsConfig(first_port=port)))
        with pytest.raises(PortTakenError, match=f"KV events: port {port} on 127.0.0.1"):
            await other.start()


def test_without_pyzmq_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "epp.lab.fleet.kv_publisher", None)
    with pytest.raises(FleetConfigError, match=r"pip install 'endpoint-picker\[kv-events\]'"):
        Fleet(FleetConfig(endpoints=1, kv_events=EVENTS))


def test_ports_follow_each_other() -> None:
    events = KvEventsConfig(first_port=5557)
    assert [events.ports_of(index) for index in range(2)] == [(5557, 5558), (5559, 5560)]
    with pytest.raises(
        FleetConfigError, match="KV-event port of endpoint-1 is out of range: 65537"
    ):
        FleetConfig(endpoints=2, kv_events=KvEventsConfig(first_port=65_534))
