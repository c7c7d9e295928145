"""HTTP/2 from client to Envoy: several requests per connection, some of them reset."""

import asyncio
from collections.abc import Sequence
from random import Random

from tools.faults.aborts import HESITATION_SECONDS, Point
from tools.faults.asking import Request, at_most, judged, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.http2_client import Http2Client, connected
from tools.faults.outcome import RunOutcome

CONNECTIONS_AT_ONCE = 4
STREAMS = 20
"""Concurrent streams of a connection."""
STAYING = 1 / 2
DROPPED = 1 / 5
"""Share of connections that are closed with open requests."""
POINTS = (Point.BEFORE_THE_BODY, Point.MID_BODY, Point.BEFORE_THE_RESPONSE, Point.MID_RESPONSE)


async def http2_clients(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Half of the streams are reset; the others on the same connections must not be affected."""
    chooser, outcome = Random(7), RunOutcome()

    async def connection(numbers: Sequence[int]) -> None:
        is_dropped = chooser.random() < DROPPED
        async with connected(gateway.port) as client, asyncio.TaskGroup() as tasks:
            for number in numbers:
                if is_dropped:
                    tasks.create_task(_abandoned(client, number, chooser, outcome))
                elif chooser.random() < STAYING:
                    tasks.create_task(_whole(client, make_request(number, chooser), outcome))
                else:
                    point = POINTS[number % len(POINTS)]
                    tasks.create_task(_reset(client, number, point, chooser, outcome))

    firsts = range(0, requests, STREAMS)
    batches = (range(first, min(first + STREAMS, requests)) for first in firsts)
    await at_most(CONNECTIONS_AT_ONCE, map(connection, batches))
    return outcome


async def _whole(client: Http2Client, request: Request, outcome: RunOutcome) -> None:
    stream = client.begin(request)
    await client.send(stream, request.body, end=True)
    ended = await stream.ended
    problem = judged(request, stream.status, bytes(stream.body))
    outcome.answered(f"{request.request_id}: {ended}" if ended else problem)


async def _abandoned(
    client: Http2Client, number: int, chooser: Random, outcome: RunOutcome
) -> None:
    """Open a stream, and return before or during its response; the connection's end will end it."""
    request = make_request(number, chooser, hold=chooser.choice(("headers", "body")))
    await client.send(client.begin(request), request.body, end=True)
    await asyncio.sleep(chooser.uniform(0.0, HESITATION_SECONDS))
    outcome.broken["connection dropped"] += 1


async def _reset(
    client: Http2Client, number: int, point: Point, chooser: Random, outcome: RunOutcome
) -> None:
    hold = {Point.BEFORE_THE_RESPONSE: "headers", Point.MID_RESPONSE: "body"}.get(point, "")
    request = make_request(number, chooser, hold=hold)
    stream = client.begin(request)
    match point:
        case Point.MID_BODY:
            part = request.body[: chooser.randrange(1, len(request.body))]
            await client.send(stream, part, end=False)
        case Point.BEFORE_THE_RESPONSE:
            await client.send(stream, request.body, end=True)
            await asyncio.sleep(chooser.uniform(0.0, HESITATION_SECONDS))
        case Point.MID_RESPONSE:
            await client.send(stream, request.body, end=True)
            await stream.began
    if stream.ended.done():
        outcome.wrong.append(f"the gateway left {point}: {stream.ended.result()}")
        return
    client.reset(stream)
    outcome.broken[f"reset {point}"] += 1
