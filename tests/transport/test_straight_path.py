"""From bytes read to bytes written, the transport makes no call of the event loop."""

import asyncio
from collections.abc import Mapping

import pytest

from epp.transport import Stream
from tools.harness.in_memory import connect
from tools.harness.raw_client import METHOD, Echo, data, fields, headers, message
from transport.counting_loop import CountingLoop, run_counting

STREAMS = 1000


@pytest.mark.parametrize("streams_per_read", [1, 50])
def test_immediate_responses_use_no_task_future_or_callback(
    streams_per_read: int,
) -> None:
    async def test(loop: CountingLoop) -> None:
        handlers: list[Echo] = []

        def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
            handlers.append(Echo(stream, metadata))
            return handlers[-1]

        client = connect({METHOD: opened}, loop=loop)
        ids = range(1, 2 * STREAMS, 2)
        reads = []
        for first in range(0, STREAMS, streams_per_read):
            group = ids[first : first + streams_per_read]
            reads.append(b"".join(headers(n) + data(n, message(b"one")) for n in group))
            reads.append(b"".join(data(n, message(b"two")) for n in group))
            reads.append(b"".join(data(n, message(b"three"), end=True) for n in group))
        before = len(client.transport.writes)
        with loop.watched() as asked:
            for read in reads:
                client.protocol.data_received(read)
        assert asked == {}
        assert len(client.transport.writes) - before == len(reads)
        client.read()
        assert len(handlers) == STREAMS
        for stream_id in ids:
            response = client.streams[stream_id]
            assert response.messages == [b"one", b"two", b"three"]
            assert response.status == 0

    run_counting(test)


def test_deadline_uses_one_timer_only() -> None:
    async def test(loop: CountingLoop) -> None:
        client = connect({METHOD: Echo}, loop=loop)
        with loop.watched() as asked:
            client.send(headers(1, fields(grpc_timeout="5S")), data(1, message(b"a"), end=True))
        assert asked == {"call_at": 1}
        assert client.streams[1].status == 0

    run_counting(test)


def test_counting_loop_counts_calls() -> None:
    async def test(loop: CountingLoop) -> None:
        with loop.watched() as asked:
            loop.call_later(0, lambda: None)
            loop.create_future().cancel()
            await loop.create_task(asyncio.sleep(0))
        assert (asked["call_at"], asked["create_future"], asked["create_task"]) == (1, 1, 1)
        assert asked["call_soon"] >= 2

    run_counting(test)
