"""Thousands of concurrent requests in each phase of a request."""

import asyncio
from random import Random

from tools.faults.asking import BROKEN, Request, connected, judged, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome

CONNECTING_AT_ONCE = 100
BODY_CUT = 40


async def many_streams(gateway: FaultGateway, requests: int) -> RunOutcome:
    """All requests stop mid-body, then before or during their responses, and then all succeed."""
    chooser, outcome = Random(6), RunOutcome()
    connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)
    may_go_on = asyncio.Event()

    async def one(request: Request) -> None:
        await connecting.acquire()
        async with connected(gateway.port) as connection:
            await connection.send(request.head + request.body[:BODY_CUT])
            connecting.release()
            await may_go_on.wait()
            await connection.send(request.body[BODY_CUT:])
            try:
                coming = await connection.response()
                outcome.answered(judged(request, coming.status, await coming.body()))
            except BROKEN as error:
                outcome.wrong.append(f"{request.request_id} was broken off: {error!r}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(requests):
            hold = "headers" if number % 2 else "body"
            request = make_request(number, chooser, prompt_bytes=300, events=8, hold=hold)
            tasks.create_task(one(request))
        await gateway.until("transport_streams", requests)
        may_go_on.set()
        await gateway.until_held(requests)
        found = await gateway.metrics()
        for name in ("transport_streams", "endpoint_inflight_requests"):
            outcome.check(found[name] == requests, f"{name} is {found[name]:g}, not {requests}")
            outcome.notes.append(f"{name} {found[name]:g}")
        for request_id in list(gateway.servers.held):
            gateway.servers.release(request_id)
    return outcome
