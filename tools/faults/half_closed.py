"""Clients that half-close after the request and keep reading, as ``nc`` does."""

from random import Random

from tools.faults.asking import BROKEN, asked, at_most, connected, judged, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome

AT_ONCE = 32
STAYING = 1 / 4


async def half_closed(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Envoy takes the FIN for a disconnection: a response arrives complete and correct, or none."""
    chooser, outcome = Random(5), RunOutcome()

    async def one(number: int) -> None:
        request = make_request(number, chooser)
        if chooser.random() < STAYING:
            outcome.answered(await asked(gateway.port, request))
            return
        async with connected(gateway.port) as connection:
            await connection.send(request.head + request.body)
            connection.writer.write_eof()
            try:
                coming = await connection.response()
                problem = judged(request, coming.status, await coming.body())
            except BROKEN:
                outcome.broken["closed by Envoy"] += 1
                return
        if problem:
            outcome.wrong.append(problem)
        else:
            outcome.broken["answered all the same"] += 1

    await at_most(AT_ONCE, (one(number) for number in range(requests)))
    return outcome
