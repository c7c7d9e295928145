"""Send one request over HTTP, check the response and return a `Record`, also for a failure."""

import asyncio
import ssl
from collections.abc import Callable
from random import Random

from epp.lab.load.answer import Answer
from epp.lab.load.client import ConnectionPool
from epp.lab.load.errors import RequestFailedError
from epp.lab.load.plan import LoadPlan
from epp.lab.load.prompts import Prompts
from epp.lab.results.record import ErrorKind, Record


class HttpRequestSender:
    """Sends the requests of a plan over persistent connections."""

    def __init__(self, plan: LoadPlan, *, clock: Callable[[], float], rng: Random) -> None:
        address = plan.address
        https = address.scheme == "https"
        host = address.hostname or ""
        port = address.port or (443 if https else 80)
        tls = ssl.create_default_context() if https else None
        self._pool = ConnectionPool(host, port, tls=tls)
        self._prompts = Prompts(plan, rng)
        self._head = _request_head(plan)
        self._timeout_seconds = plan.timeout_seconds
        self._clock = clock

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        """Send request `index`, due `scheduled_at` seconds after `run_started_at` (clock time)."""
        clock = self._clock
        body = self._prompts.body(index)
        leaves_early = self._prompts.leaves_early(index)
        answer = Answer(clock, origin=run_started_at, leaves_early=leaves_early)
        error: ErrorKind | None = None
        message = ""
        started_at = clock()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._send(self._head + b"%d\r\n\r\n" % len(body) + body, answer)
            answer.check()
        except RequestFailedError as failure:
            error, message = failure.kind, str(failure)
        except TimeoutError:
            error = ErrorKind.TIMEOUT
            message = f"no complete response within {self._timeout_seconds:g} s"
        finished_at = clock()
        return Record(
            index=index,
            scheduled_at=scheduled_at,
            started_at=started_at - run_started_at,
            finished_at=finished_at - run_started_at,
            status=answer.status,
            served_by=answer.served_by,
            first_byte_at=answer.first_byte_at,
            token_times=answer.token_times,
            output_tokens=answer.output_tokens,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            left_early=answer.left_early and error is None,
            error=error,
            message=message,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def _send(self, request: bytes, answer: Answer) -> None:
        connection = await self._pool.acquire()
        try:
            await connection.exchange(request, answer)
        finally:
            self._pool.release(connection)


def _request_head(plan: LoadPlan) -> bytes:
    """Return the head of the request up to and including ``content-length: ``."""
    headers = {
        "host": plan.address.netloc,
        "content-type": "application/json",
        "accept": "text/event-stream" if plan.stream else "application/json",
        "user-agent": "epp-load",
    }
    headers.update((name.lower(), value) for name, value in plan.headers)
    headers.pop("content-length", None)
    lines = [f"POST {plan.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "content-length: "]).encode("ascii")
