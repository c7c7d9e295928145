"""The exchange over a real Redis that refuses, lacks memory, or gets other messages."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from structlog.testing import capture_logs
from system.test_replicas import write_certificates

from epp.replication import Replica, ReplicaSettings, ReplicaStateError
from epp.replication.redis_channel import RedisCarrier
from epp.replication.redis_connection import connection_pool
from epp.replication.settings import RedisAddress, replica_state_of
from epp.replication.traffic import Dropped
from tools.harness.gateway import until
from tools.harness.redis_server import RedisServer, redis_server

CHANNEL = "epp:0:pool"
RIGHTS = "resetchannels &epp:* -@all +subscribe +unsubscribe +publish +ping"
"""Those of docs/replicas.md."""
AWAY = "replica state is out of reach, going on without it"
BACK = "replica state is in reach again"

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


@asynccontextmanager
async def client(redis: RedisServer) -> AsyncIterator[Any]:  # not all of its methods have types
    async with Redis(port=redis.port) as made:
        yield made


@asynccontextmanager
async def replica(
    redis: RedisServer, name: str, *, user: str = "", password: Path | None = None
) -> AsyncIterator[Replica]:
    url = f"redis://{user}@127.0.0.1:{redis.port}"
    settings = ReplicaSettings(replica_state=url, replica_state_password_file=password)
    address = replica_state_of(url)
    assert isinstance(address, RedisAddress)
    rng = random.Random(1)
    carrier = RedisCarrier(address, settings, name=name, group="pool", rng=rng)
    made = Replica(name, carrier, lease_seconds=5.0)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


def lines(logs: list[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


@pytest.mark.parametrize(
    "lacking",
    [
        pytest.param("resetchannels &other:* -@all +subscribe +publish +ping", id="channels"),
        pytest.param("resetchannels &epp:* -@all +subscribe +ping", id="publish"),
    ],
)
async def test_without_rights_the_log_says_so_once(
    redis: RedisServer, tmp_path: Path, lacking: str
) -> None:
    password = tmp_path / "password"
    await asyncio.to_thread(password.write_text, "secret")
    async with client(redis) as admin:
        await admin.execute_command("ACL", "SETUSER", "epp", "on", ">secret", *lacking.split())
        with capture_logs() as logs:
            async with replica(redis, "a", user="epp", password=password):
                async with asyncio.timeout(15):
                    while await connections(admin) < 8:  # noqa: ASYNC110 - nothing tells of it
                        await asyncio.sleep(0.02)
                assert len(lines(logs, AWAY)) == 1
                assert not lines(logs, BACK)
                assert "permissions" in lines(logs, AWAY)[0]["error"]
                assert "Command #" not in lines(logs, AWAY)[0]["error"]
                # With the rights, it goes on by itself.
                await admin.execute_command("ACL", "SETUSER", "epp", *RIGHTS.split())
                await admin.acl_log_reset()
                async with asyncio.timeout(15):
                    await until(lambda: bool(lines(logs, BACK)))
                assert await admin.acl_log() == []
        assert "secret" not in str(logs)


async def is_copied(admin: Any) -> bool:
    """Return whether a copy has connected to its master."""
    status: str = (await admin.info("replication"))["master_link_status"]
    return status == "up"


async def connections(admin: Any) -> int:
    """Return how many connections Redis has accepted so far."""
    return int((await admin.info("stats"))["total_connections_received"])


async def test_a_password_that_is_no_text_is_a_fault_like_others(
    redis: RedisServer, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    await asyncio.to_thread(password.write_bytes, b"\xff\xfe")
    with capture_logs() as logs:
        async with replica(redis, "a", password=password) as made:
            async with asyncio.timeout(15):
                await until(lambda: bool(logs))
            await asyncio.to_thread(password.write_text, "")
            async with asyncio.timeout(15):
                await until(lambda: bool(lines(logs, BACK)))
            assert made.is_connected
    assert [each["event"] for each in logs] == [AWAY, BACK]
    assert "is not UTF-8" in logs[0]["error"]


async def test_only_the_given_authority_is_trusted_and_one_that_is_missing_is_a_fault(
    tmp_path: Path,
) -> None:
    await asyncio.to_thread(write_certificates, tmp_path)
    address = RedisAddress(host="localhost", port=1, database=0, username="", is_tls=True, group="")
    given = ReplicaSettings(
        replica_state="rediss://localhost:1",
        replica_state_ca_file=tmp_path / "ca.crt",
        replica_state_cert_path=tmp_path / "client",
    )
    pool: Any = await asyncio.to_thread(connection_pool, address, given, timeout_seconds=1.0)
    context = pool.make_connection().ssl_context.get()
    in_the_file = (await asyncio.to_thread((tmp_path / "ca.crt").read_text)).count("BEGIN CERT")
    assert context.cert_store_stats()["x509"] == in_the_file
    assert context.check_hostname
    missing = replace(given, replica_state_ca_file=tmp_path / "missing")
    with pytest.raises(ReplicaStateError, match=r"cannot be read \(.*missing"):
        await asyncio.to_thread(connection_pool, address, missing, timeout_seconds=1.0)


async def test_other_messages_on_the_channel_are_counted_and_harm_nothing(
    redis: RedisServer,
) -> None:
    garbage = [b"", b"hello", b"\xff" * 100, b"\x94\x01\xa1\xff\x05\xa0", bytes(1 << 20)]
    with capture_logs() as logs:
        async with client(redis) as other, replica(redis, "a") as a, replica(redis, "b") as b:
            async with asyncio.timeout(15):
                await until(lambda: len(a.peers) == len(b.peers) == 1)
                for each in garbage:
                    await other.publish(CHANNEL, each)
                await until(lambda: a.traffic.dropped[Dropped.MALFORMED] == len(garbage))
                heard = a.traffic.received
                await until(lambda: a.traffic.received > heard)
            assert len(a.peers) == len(b.peers) == 1
    assert {each["event"] for each in logs} <= {"replica joined", "replica left"}


async def test_a_redis_without_memory_carries_messages() -> None:
    async with (
        redis_server("maxmemory 1", "maxmemory-policy noeviction") as redis,
        replica(redis, "a") as a,
        replica(redis, "b") as b,
    ):
        async with asyncio.timeout(15):
            await until(lambda: len(a.peers) == len(b.peers) == 1)


async def test_what_is_published_at_a_master_reaches_its_copies_but_not_the_reverse(
    redis: RedisServer,
) -> None:
    """As docs/replicas.md says: all replicas must reach the same server."""
    async with redis_server(f"replicaof 127.0.0.1 {redis.port}") as copy:
        async with client(copy) as admin, asyncio.timeout(30):
            while not await is_copied(admin):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.05)
        async with replica(redis, "a") as at_master, replica(copy, "b") as at_copy:
            async with asyncio.timeout(15):
                await until(lambda: len(at_copy.peers) == 1)
            assert len(at_master.peers) == 0
