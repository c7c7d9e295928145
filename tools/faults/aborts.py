"""Clients that disconnect at any point of a request or response, with a close or a reset."""

import asyncio
from enum import StrEnum
from random import Random

from tools.faults.asking import BROKEN, Connection, Request, asked, at_most, connected, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome

AT_ONCE = 64
STAYING = 1 / 4
HESITATION_SECONDS = 0.02


class Point(StrEnum):
    """The point at which a client disconnects."""

    IN_THE_HEAD = "in the head"
    BEFORE_THE_BODY = "before the body"
    MID_BODY = "mid-body"
    AT_THE_END_OF_THE_BODY = "at the end of the body"
    BEFORE_THE_RESPONSE = "before the response"
    MID_RESPONSE = "mid-response"


POINTS = tuple(Point)


async def aborts(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Three of four clients disconnect; the others must not be affected."""
    chooser, outcome = Random(1), RunOutcome()

    async def one(number: int) -> None:
        if chooser.random() < STAYING:
            request = make_request(number, chooser)
            outcome.answered(await asked(gateway.port, request))
            return
        point = POINTS[number % len(POINTS)]
        hold = {Point.BEFORE_THE_RESPONSE: "headers", Point.MID_RESPONSE: "body"}.get(point, "")
        request = make_request(number, chooser, hold=hold)
        with_reset = chooser.random() < 0.5
        async with connected(gateway.port) as connection:
            try:
                await _as_far_as(point, connection, request, chooser)
            except BROKEN as error:
                outcome.wrong.append(f"the gateway left {point}: {error!r}")
                return
            await connection.leave(with_reset=with_reset)
        outcome.broken[f"left {point}"] += 1

    await at_most(AT_ONCE, (one(number) for number in range(requests)))
    return outcome


async def _as_far_as(
    point: Point, connection: Connection, request: Request, chooser: Random
) -> None:
    head, body = request.head, request.body
    match point:
        case Point.IN_THE_HEAD:
            await connection.send(head[: chooser.randrange(len(head))])
        case Point.BEFORE_THE_BODY:
            await connection.send(head)
        case Point.MID_BODY:
            await connection.send(head + body[: chooser.randrange(1, len(body))])
        case Point.AT_THE_END_OF_THE_BODY:
            await connection.send(head + body)
        case Point.BEFORE_THE_RESPONSE:
            await connection.send(head + body)
            # While it is being decided or forwarded, or while its server holds it.
            await asyncio.sleep(chooser.uniform(0.0, HESITATION_SECONDS))
        case Point.MID_RESPONSE:
            await connection.send(head + body)
            coming = await connection.response()
            await anext(coming.parts())
