"""Model servers that reset or close their connections at every point of an exchange."""

from collections.abc import Mapping
from random import Random

from tools.faults.asking import BROKEN, Request, ask, at_most, connected, judged, make_request
from tools.faults.gateway import FaultGateway
from tools.faults.outcome import RunOutcome
from tools.faults.upstream import REFUSAL, Fault

AT_ONCE = 32
SOUND = 1 / 4
UPLOAD_BYTES = 3_000_000
"""Length of a prompt that is still being sent when its server stops: more than all windows and
buffers between the EPP and the server."""

BROKEN_OFF = "broken off"
EXPECTED: Mapping[Fault, frozenset[str]] = {
    # Envoy answers instead of the server: 503, or 502 if the server's response is not HTTP.
    Fault.RESET_BEFORE_HEADERS: frozenset({"503"}),
    Fault.CLOSE_BEFORE_HEADERS: frozenset({"503"}),
    Fault.NO_HTTP: frozenset({"502"}),
    Fault.RESET_MID_UPLOAD: frozenset({"503"}),
    Fault.RESPONSE_MID_UPLOAD: frozenset({"413"}),
    # Envoy answers with 502 while it waits for the EPP's reply to the headers; once they are sent,
    # it can only close the connection.
    Fault.RESET_MID_BODY: frozenset({"502", BROKEN_OFF}),
    Fault.CLOSE_MID_BODY: frozenset({"502", BROKEN_OFF}),
    Fault.CUT_SHORT: frozenset({"502", BROKEN_OFF}),
}
"""Allowed outcomes for a client, by fault."""
FAULTS = tuple(EXPECTED)
_MID_UPLOAD = frozenset({Fault.RESET_MID_UPLOAD, Fault.RESPONSE_MID_UPLOAD})


_MID_BODY = frozenset({Fault.RESET_MID_BODY, Fault.CLOSE_MID_BODY, Fault.CUT_SHORT})


async def broken_servers(gateway: FaultGateway, requests: int) -> RunOutcome:
    """Three of four requests meet a fault; the others must not be affected."""
    chooser, outcome = Random(2), RunOutcome()

    async def one(number: int) -> None:
        fault = Fault.NONE if chooser.random() < SOUND else FAULTS[number % len(FAULTS)]
        size = UPLOAD_BYTES if fault in _MID_UPLOAD else None
        is_held = fault in _MID_BODY and chooser.random() < 0.5
        request = make_request(
            number, chooser, prompt_bytes=size, fault=fault, hold="body" if is_held else ""
        )
        if is_held:
            seen, problem = await _amid_the_response(gateway, request)
            expected = frozenset({BROKEN_OFF})
        else:
            seen, problem = await _seen(gateway.port, request)
            expected = EXPECTED.get(fault, frozenset())
        if fault is Fault.NONE:
            outcome.answered(problem)
        elif seen in expected:
            outcome.broken[f"{fault}: {seen}"] += 1
        else:
            outcome.wrong.append(f"{fault} was seen as {seen}: {problem}")

    await at_most(AT_ONCE, (one(number) for number in range(requests)))
    return outcome


async def _amid_the_response(gateway: FaultGateway, request: Request) -> tuple[str, str]:
    """Make a request whose server fails after the client has read a part of the response."""
    async with connected(gateway.port) as connection:
        await connection.send(request.head + request.body)
        coming = await connection.response()
        await anext(coming.parts())
        gateway.servers.release(request.request_id)
        try:
            rest = await coming.body()
        except BROKEN as error:
            return BROKEN_OFF, repr(error)
    return str(coming.status), f"{len(rest)} bytes more came"


async def _seen(port: int, request: Request) -> tuple[str, str]:
    """Make a request; return its outcome, and what is wrong with it for a healthy server."""
    try:
        status, body = await ask(port, request)
    except BROKEN as error:
        return BROKEN_OFF, repr(error)
    if status == 413 and body != REFUSAL:
        return "413 changed", repr(body[:200])
    return str(status), judged(request, status, body)
