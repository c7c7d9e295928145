"""Send one request over HTTP, check the response and return a `Record`, also for a failure."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from secrets import token_hex
from typing import Protocol

from epp.lab.load.client import ResponseReceiver
from epp.lab.load.errors import RequestFailedError
from epp.lab.load.http1 import Http1Transport
from epp.lab.load.http2 import Http2Transport
from epp.lab.load.outgoing import RequestSource
from epp.lab.load.plan import LoadPlan
from epp.lab.load.request_headers import FAIRNESS_ID, OBJECTIVE, REQUEST_ID
from epp.lab.load.response import Response
from epp.lab.results.record import ErrorKind, Record


class Transport(Protocol):
    """Connections to a gateway."""

    async def exchange(
        self, headers: Iterable[tuple[str, str]], body: bytes, receiver: ResponseReceiver
    ) -> None:
        """Send a request with these headers in addition; pass the response to `receiver`.

        Raises:
            RequestFailedError: There is no complete response.
        """

    async def aclose(self) -> None:
        """Close all connections."""


class HttpRequestSender:
    """Sends the requests of a source over persistent connections."""

    def __init__(
        self, plan: LoadPlan, source: RequestSource, *, clock: Callable[[], float]
    ) -> None:
        headers = _shared_headers(plan)
        tls = ssl.create_default_context() if plan.address.scheme == "https" else None
        self._transport: Transport = (
            Http2Transport(plan, headers, tls)
            if plan.http_version == 2  # noqa: PLR2004 - the version
            else Http1Transport(plan, headers, tls)
        )
        self._source = source
        self._timeout_seconds = plan.timeout_seconds
        self._clock = clock
        self._request_id = headers.get(REQUEST_ID)
        self._tenant = headers.get(FAIRNESS_ID, "")
        self._objective = headers.get(OBJECTIVE, "")
        self._run_id = token_hex(4)

    async def __call__(self, index: int, scheduled_at: float, run_started_at: float) -> Record:
        """Send request `index`, due `scheduled_at` seconds after `run_started_at` (clock time)."""
        clock = self._clock
        outgoing = self._source.outgoing(index)
        headers = outgoing.headers
        request_id = self._request_id
        if request_id is None:
            request_id = f"{self._run_id}-{index}"
            headers = (*headers, (REQUEST_ID, request_id))
        response = Response(
            clock,
            origin=run_started_at,
            leaves_early=outgoing.leaves_early,
            keeps_text=outgoing.keeps_text,
        )
        error: ErrorKind | None = None
        message = ""
        started_at = clock()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._transport.exchange(headers, outgoing.body, response)
            response.check()
        except RequestFailedError as failure:
            error, message = failure.kind, str(failure)
        except TimeoutError:
            error = ErrorKind.TIMEOUT
            message = f"no complete response within {self._timeout_seconds:g} s"
        finished_at = clock()
        if outgoing.keeps_text and error is None:
            self._source.answered(index, response.text)
        return Record(
            index=index,
            scheduled_at=scheduled_at,
            started_at=started_at - run_started_at,
            finished_at=finished_at - run_started_at,
            status=response.status,
            served_by=response.served_by,
            first_byte_at=response.first_byte_at,
            token_times=response.token_times,
            output_tokens=response.output_tokens,
            prompt_tokens=response.usage.prompt_tokens,
            cached_tokens=response.cached_tokens,
            left_early=response.left_early and error is None,
            error=error,
            message=message,
            request_id=request_id,
            tenant=outgoing.tenant or self._tenant,
            objective=outgoing.objective or self._objective,
            adapter=outgoing.adapter,
            session=outgoing.session,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def _shared_headers(plan: LoadPlan) -> dict[str, str]:
    """Return the headers of all requests by lower-case name, those of HTTP's framing excluded."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream" if plan.stream else "application/json",
        "user-agent": "epp-load",
    }
    headers.update((name.lower(), value) for name, value in plan.headers)
    headers.pop("content-length", None)
    return headers
