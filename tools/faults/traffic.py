"""Mixed traffic through a gateway; each response is compared with the expected one.

The requests are for streams and whole responses, short and long ones, and are sent on schedule
however slow the responses are. The fake servers write four characters per token, so a lost chunk
shows even in the middle of a stream.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from epp.lab.load.client import ConnectionPool
from epp.lab.load.errors import RequestFailedError
from epp.lab.results.record import ErrorKind

CHARS_PER_TOKEN = 4
_OK, _SERVER_ERROR = 200, 500
_DONE = "data: [DONE]"
_FAILURE_BYTES = 160


class Verdict(Enum):
    """Outcome of a request."""

    WHOLE = "whole"
    TRUNCATED = "truncated"
    """A 200 with an incomplete response."""
    REFUSED = "refused"
    """A 5xx instead of a response."""
    WRONG = "wrong"
    """Anything else: another status, another text, no status at all."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request."""

    name: str
    tokens: int
    stream: bool

    def document(self, prompt: str) -> dict[str, object]:
        """Return the request's body."""
        return {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": self.stream,
        }


def kinds(short: int, long: int) -> tuple[Kind, ...]:
    """Return a mix of six kinds of requests, two of them long; lengths are in tokens."""
    quick = (Kind("short stream", short, True), Kind("short whole", short, False))
    slow = (Kind("long stream", long, True), Kind("long whole", long, False))
    return (*quick, slow[0], *quick, slow[1])


@dataclass(slots=True)
class Response:
    """Collects a response; a receiver of :class:`epp.lab.load.client.LoadConnection`."""

    status: int = 0
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Receive the status and the headers."""
        self.status, self.headers = status, headers

    def on_body(self, chunk: bytes) -> bool:
        """Receive a piece of the body."""
        self.body += chunk
        return True

    def verdict(self, kind: Kind, *, is_complete: bool) -> Verdict:
        """Return the verdict on the response.

        Args:
            kind: The kind of the request.
            is_complete: Whether the HTTP message is complete.
        """
        if self.status != _OK:
            is_refusal = is_complete and self.status >= _SERVER_ERROR
            return Verdict.REFUSED if is_refusal else Verdict.WRONG
        if not is_complete:
            return Verdict.TRUNCATED
        try:
            text = _text(self.body.decode(), kind.stream)
        except ValueError:
            return Verdict.TRUNCATED  # a chunk within the document or at its end is missing
        expected = kind.tokens * CHARS_PER_TOKEN
        if len(text) > expected:
            return Verdict.WRONG
        return Verdict.WHOLE if len(text) == expected else Verdict.TRUNCATED


def _text(body: str, stream: bool) -> str:
    """Return the text of a response.

    Raises:
        ValueError: The body is not a response, or lacks its end.
    """
    documents = [body]
    if stream:
        *documents, last = [line for line in body.split("\n\n") if line] or [""]
        if last != _DONE:
            raise ValueError("the stream ended without [DONE]")
    parts = [json.loads(each.removeprefix("data: "))["choices"] for each in documents]
    return "".join(choice["text"] for choices in parts for choice in choices)


@dataclass(frozen=True, slots=True)
class Sent:
    """One request and its outcome; times are those of ``time.monotonic``."""

    number: int
    kind: Kind
    began_at: float
    ended_at: float
    status: int
    verdict: Verdict
    server: str
    """The model server that answered; "" if none did."""
    failure: str = ""
    """What was received in place of a whole response, or what ended it; "" for a whole one."""


def http_request(host: str, document: dict[str, object], *headers: str) -> bytes:
    """Return a request for a completion, with further header lines."""
    body = json.dumps(document).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Traffic:
    """Requests to one or more gateways in turn, of the kinds in turn."""

    def __init__(
        self, urls: Sequence[str], mix: Sequence[Kind], *, timeout_seconds: float = 30.0
    ) -> None:
        addresses = [urlsplit(url) for url in urls]
        self._gateways = [
            (address.netloc, ConnectionPool(address.hostname or "", address.port or 80))
            for address in addresses
        ]
        self._mix = mix
        self._timeout_seconds = timeout_seconds
        self._begun = 0
        self._news = asyncio.Condition()
        self.sent: list[Sent] = []
        """Requests that have ended."""
        self.may_stop = asyncio.Event()
        """While not set, requests continue beyond the given number."""

    async def run(self, requests: int, rate: float) -> None:
        """Send at least ``requests`` requests, ``rate`` per second, and wait for the last one."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, kind in enumerate(itertools.cycle(self._mix)):
                if number >= requests and self.may_stop.is_set():
                    return
                await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
                tasks.create_task(self._send(number, kind), name=f"request-{number}")
                self._begun += 1
                await self._notify()

    async def until_begun(self, requests: int) -> None:
        """Wait until ``requests`` requests have been sent."""
        await self.until(lambda: self._begun >= requests)

    async def until_whole(self, *, since: float, count: int = 1) -> None:
        """Wait until ``count`` requests that began after ``since`` have succeeded."""
        await self.until(lambda: len(self.whole(since)) >= count)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked when a request begins or ends."""
        async with self._news:
            await self._news.wait_for(holds)

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def verdicts(self, among: Callable[[Sent], bool] = lambda _: True) -> Counter[Verdict]:
        """Return the number of requests by verdict, of those for which ``among`` holds."""
        return Counter(each.verdict for each in self.sent if among(each))

    def whole(self, since: float) -> list[Sent]:
        """Return the successful requests that began after ``since``, in order."""
        good = [e for e in self.sent if e.verdict is Verdict.WHOLE and e.began_at >= since]
        return sorted(good, key=lambda each: each.began_at)

    def seconds_until_whole(self, since: float) -> float | None:
        """Return the seconds from ``since`` to the start of the first success; None for never."""
        whole = self.whole(since)
        return whole[0].began_at - since if whole else None

    async def aclose(self) -> None:
        """Close the connections."""
        for _, pool in self._gateways:
            await pool.aclose()

    async def _send(self, number: int, kind: Kind) -> None:
        host, pool = self._gateways[number % len(self._gateways)]
        request = http_request(host, kind.document(f"{number} {kind.name}"))
        response, began_at = Response(), time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                connection = await pool.acquire()
                try:
                    await connection.exchange(request, response)
                finally:
                    pool.release(connection)
            is_complete, cause = True, ""
        except TimeoutError:
            is_complete, cause = False, f"not complete within {self._timeout_seconds:g} s: "
        except RequestFailedError as error:
            if error.kind not in {ErrorKind.RESET, ErrorKind.MALFORMED}:
                raise
            is_complete, cause = False, f"{error}: "
        verdict = response.verdict(kind, is_complete=is_complete)
        server = response.headers.get(b"x-served-by", b"").decode()
        ended_at = time.monotonic()
        failure = ""
        if verdict is not Verdict.WHOLE:
            body = response.body[:_FAILURE_BYTES].decode(errors="replace")
            failure = f"{verdict.value}: {cause}{response.status} {body}"
        self.sent.append(
            Sent(number, kind, began_at, ended_at, response.status, verdict, server, failure)
        )
        await self._notify()
