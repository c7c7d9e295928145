"""Replicas of ``epp serve`` behind a real Envoy, which share their state through a real Redis."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGKILL, SIGTERM

import httpx
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.lab.envoy import Mode
from epp.lab.fleet import FleetConfig
from epp.transport import load_certificate
from tools.faults.processes import PickerProcess, Setting, Site, site
from tools.harness.redis_server import RedisServer, redis_server

CONNECTED = "llm_d_epp_replica_connected"
PEERS = "llm_d_epp_replica_peers"
SHARED = "llm_d_epp_replica_peer_inflight_requests"
OWN = "llm_d_epp_endpoint_inflight_requests"
BLOCKS = "llm_d_epp_prefix_indexer_size"
BLOCKS_OF_A_PROMPT = 2

pytestmark = pytest.mark.integration

SERVERS = 8
FLEET = FleetConfig(endpoints=SERVERS, time_scale=5.0)
QUICK = FleetConfig(endpoints=3, time_scale=0.05)
LONG_OUTPUT = 2000
"""Tokens of a response that does not end during a test."""
SETTING = Setting(Mode.LEAN)
# Scrapes would show the load of others, too: so late that they do not.
UNSEEING = ("--refresh-metrics-interval", "1h", "--scrape", "fixed", "--outlier-detection=false")


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


# Processes of a busy machine are silent for seconds, so leases are longer than the default.
def over(redis: RedisServer, lease: str = "5s") -> tuple[str, ...]:
    return ("--replica-state", f"redis://127.0.0.1:{redis.port}", "--replica-lease", lease)


async def acquainted(pickers: list[PickerProcess]) -> None:
    """Wait until all replicas know each other."""
    for picker in pickers:
        await picker.until(PEERS, len(pickers) - 1)


@asynccontextmanager
async def clients() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=200)
    client = await asyncio.to_thread(
        httpx.AsyncClient, timeout=60.0, limits=limits, trust_env=False
    )
    async with client:
        yield client


class Streams:
    """Requests whose responses are in progress, over all replicas."""

    def __init__(self, made: Site, client: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self._made = made
        self._client = client
        self._stack = stack

    async def begin(self, number: int) -> None:
        """Send a request, and wait for the head of its response."""
        response = await self._stack.enter_async_context(
            self._client.stream("POST", f"{self._made.url}/v1/completions", json=body(number))
        )
        assert response.status_code == 200

    async def begin_at_once(self, numbers: Iterable[int]) -> None:
        """Send requests together, and wait until all responses have begun."""
        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(self.begin(number))

    async def spread(self) -> list[int]:
        """Return the requests on each server, over all replicas, ascending."""
        counts: Counter[str] = Counter()
        for picker in self._made.pickers:
            for labels, number in (await picker.samples(OWN)).items():
                counts[labels] += round(number)
        assert len(counts) == len(self._made.fleet.servers)
        return sorted(counts.values())


@asynccontextmanager
async def streaming(made: Site) -> AsyncIterator[Streams]:
    async with clients() as client, AsyncExitStack() as stack:
        yield Streams(made, client, stack)


def body(number: int, **fields: object) -> dict[str, object]:
    """Return a request whose prompt shares no block with those of other numbers."""
    prompt = f"{number:04d} " * 80
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": LONG_OUTPUT,
        "stream": True,
        **fields,
    }


@pytest.mark.parametrize("replicas", [2, 3])
async def test_requests_in_turn_take_each_server_once(redis: RedisServer, replicas: int) -> None:
    """Without sharing, each replica would fill its own servers, whatever the others have done."""
    options = (*over(redis), *UNSEEING)
    async with site(SETTING, FLEET, *options, pickers=replicas) as made, streaming(made) as streams:
        await acquainted(made.pickers)
        for number in range(2 * SERVERS):
            await streams.begin(number)
            await all_know(made.pickers, number + 1)
            spread = await streams.spread()
            assert spread[-1] - spread[0] <= 1
        assert await streams.spread() == [2] * SERVERS


@pytest.mark.parametrize("replicas", [2, 3])
async def test_requests_at_once_are_spread_over_all_servers(
    redis: RedisServer, replicas: int
) -> None:
    options = (*over(redis), *UNSEEING)
    async with site(SETTING, FLEET, *options, pickers=replicas) as made, streaming(made) as streams:
        await acquainted(made.pickers)
        begun = 0
        while begun < 2 * SERVERS:
            # Before they hear of each other, all replicas may take the same of the idlest servers.
            await streams.begin_at_once(range(begun, begun + replicas))
            begun += replicas
            await all_know(made.pickers, begun)
            spread = await streams.spread()
            assert spread[-1] - spread[0] <= replicas
        # In a long burst they hear of each other now and then, and may follow old news.
        await streams.begin_at_once(range(begun, begun + 5 * SERVERS))
        begun += 5 * SERVERS
        await all_know(made.pickers, begun)
        assert sum(await streams.spread()) == begun
        for picker in made.pickers:
            assert await picker.errors() == []


async def test_a_killed_replica_frees_its_load_within_its_lease(redis: RedisServer) -> None:
    options = (*over(redis, "1s"), *UNSEEING)
    async with site(SETTING, FLEET, *options, pickers=2) as made, streaming(made) as streams:
        await acquainted(made.pickers)
        for number in range(6):
            await streams.begin(number)
        await all_know(made.pickers, 6)
        killed, left = made.pickers
        assert await killed.metric(OWN) == 3
        await left.until(SHARED, 3)  # a process that is silent for a second is forgotten meanwhile
        killed.signal(SIGKILL)
        await killed.wait()
        await left.until(PEERS, 0)
        assert await left.metric(SHARED) == 0


async def test_a_replica_that_is_stopped_says_goodbye(redis: RedisServer) -> None:
    options = (*over(redis, "10m"), "--drain-timeout", "0s", "--drain-delay-seconds", "0")
    async with site(SETTING, QUICK, *options, pickers=2) as made:
        await acquainted(made.pickers)
        stopped, left = made.pickers
        stopped.signal(SIGTERM)
        assert await stopped.wait() == 0
        await left.until(PEERS, 0)


async def test_a_replica_that_joins_knows_the_prompts_of_the_others(redis: RedisServer) -> None:
    async with site(SETTING, QUICK, *over(redis), pickers=2) as made, clients() as client:
        await acquainted(made.pickers)
        requests = 10
        for number in range(requests):
            response = await client.post(
                f"{made.url}/v1/completions", json=body(number, stream=False, max_tokens=2)
            )
            assert response.status_code == 200
        blocks = requests * BLOCKS_OF_A_PROMPT
        for picker in made.pickers:
            await picker.until(BLOCKS, blocks)
        late = await made.start_picker()
        await late.until(BLOCKS, blocks)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_no_request_is_lost_while_redis_is_away(redis: RedisServer, fault: str) -> None:
    async with site(SETTING, QUICK, *over(redis, "1s"), pickers=2) as made, clients() as client:
        await acquainted(made.pickers)
        statuses: Counter[int] = Counter()
        is_over = False

        async def ask(first: int) -> None:
            number = first
            while not is_over:
                response = await client.post(
                    f"{made.url}/v1/completions", json=body(number, stream=False, max_tokens=4)
                )
                statuses[response.status_code] += 1
                number += 8

        async with asyncio.TaskGroup() as tasks:
            for first in range(8):
                tasks.create_task(ask(first))
            if fault == "killed":
                await redis.kill()
            else:
                redis.freeze()
            for picker in made.pickers:
                await picker.until(CONNECTED, 0)
                await picker.until(PEERS, 0)
                assert await picker.metric(SHARED) == 0
            away = statuses.total()
            while statuses.total() < away + 200:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
            if fault == "killed":
                await redis.start()
            else:
                redis.thaw()
            for picker in made.pickers:
                await picker.until(CONNECTED, 1)
            await acquainted(made.pickers)
            is_over = True
        assert statuses.keys() == {200}
        for picker in made.pickers:
            await picker.until_idle()
            await picker.until(SHARED, 0)
            assert await picker.errors() == []


async def test_password_and_tls(tmp_path: Path) -> None:
    await asyncio.to_thread(write_certificates, tmp_path)
    password = tmp_path / "password"
    await asyncio.to_thread(password.write_text, "wrong\n")
    tls = (
        f"tls-cert-file {tmp_path}/server.crt",
        f"tls-key-file {tmp_path}/server.key",
        f"tls-ca-cert-file {tmp_path}/ca.crt",
    )
    async with redis_server("requirepass secret", *tls, is_plain=False) as redis:
        options = (
            *("--replica-state", f"rediss://localhost:{redis.port}/2?group=blue"),
            *("--replica-state-password-file", str(password)),
            *("--replica-state-ca-file", f"{tmp_path}/ca.crt"),
            *("--replica-state-cert-path", f"{tmp_path}/client"),
        )
        async with site(SETTING, QUICK, *options, pickers=2) as made, clients() as client:
            response = await client.post(
                f"{made.url}/v1/completions", json=body(1, stream=False, max_tokens=2)
            )
            assert response.status_code == 200
            for picker in made.pickers:
                assert await picker.metric(CONNECTED) == 0
            # The file is read at each connect, so a new password needs no restart.
            await asyncio.to_thread(password.write_text, "secret\n")
            await acquainted(made.pickers)
            log = [line for picker in made.pickers for line in await picker.log()]
            assert "secret" not in str(log)
            assert "replica state is out of reach, going on without it" in {
                line["event"] for line in log
            }


async def all_know(pickers: list[PickerProcess], requests: int) -> None:
    """Wait until every replica knows of so many requests in flight, its own among them."""
    async with asyncio.timeout(20):
        for picker in pickers:
            while (  # noqa: ASYNC110 - nothing tells of it
                await picker.metric(OWN) + await picker.metric(SHARED) != requests
            ):
                await asyncio.sleep(0.01)


def write_certificates(folder: Path) -> None:
    """Write those of a server, and of a client into the folder ``client``; each trusts both."""
    server = load_certificate(None)
    (folder / "server.crt").write_bytes(server.chain)
    (folder / "server.key").write_bytes(server.key)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "endpoint picker")])
    now = datetime.now(UTC)
    client = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, SHA256())
    )
    chain = client.public_bytes(Encoding.PEM)
    (folder / "client").mkdir()
    (folder / "client" / "tls.crt").write_bytes(chain)
    (folder / "client" / "tls.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (folder / "ca.crt").write_bytes(server.chain + chain)
