"""Simulates the routing sidecar of a model server.

Headers name the other servers of a request; they are removed before it is forwarded::

    x-data-parallel-host-port: A     A serves the request; its response is passed through
    x-encoder-hosts-ports: A,B       each gets the request with max_tokens 1, all at once
    x-prefiller-host-port: A,...     the first gets it with max_tokens 1, then this server decodes

A request to an encoder or a prefiller has the header `x-fake-stage`. Not simulated: KV transfer
parameters, retries and the allowlist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from http import HTTPStatus

import msgspec

from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.upstream import UpstreamResponse, post

DATA_PARALLEL = b"x-data-parallel-host-port"
ENCODERS = b"x-encoder-hosts-ports"
PREFILLER = b"x-prefiller-host-port"
STAGE = b"x-fake-stage"
STAGES = b"x-stages"
"""Response header: `stage=server` for each server involved, in order."""
_STAGE_HEADERS = frozenset((DATA_PARALLEL, ENCODERS, PREFILLER, STAGE))
# Values stay raw: some that the server ignores cannot be decoded, such as 1e999.
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class WorkStage(Enum):
    """A part of the work for a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    """Generate the response, with or without earlier stages."""
    ENCODE = "encode"
    FORWARDED = "forwarded"
    """Forward the request to another server."""


class StageOutcome(Enum):
    """The result of work that needs other servers."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    REFUSED = "refused"
    HANDED_ON = "handed on"
    """Passed to this server's engine, which counts the request from then on."""


def stage_of(headers: Mapping[bytes, bytes]) -> WorkStage:
    """Return the stage that a request is for."""
    given = headers.get(STAGE)
    return {b"prefill": WorkStage.PREFILL, b"encode": WorkStage.ENCODE}.get(
        given or b"", WorkStage.DECODE
    )


def has_stages(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request has stages on other servers."""
    return PREFILLER in headers or ENCODERS in headers


def rank_of(headers: Mapping[bytes, bytes], own_address: str) -> str:
    """Return the address to forward the request to, "" for none."""
    rank = headers.get(DATA_PARALLEL, b"").decode("latin-1").strip()
    return "" if rank == own_address else rank


class StageRefusedError(Exception):
    """A server of an earlier stage returned an error, which is passed to the client."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"an earlier stage returned status {status}")
        self.status = status
        self.body = body


async def run_stages(exchange: Exchange) -> list[tuple[WorkStage, str]]:
    """Run the encode and prefill stages on other servers; return each stage and its server.

    Raises:
        ApiError: The body is not a JSON object.
        StageError: A server cannot be reached.
        StageRefusedError: A server returns an error.
    """
    given = exchange.headers
    headers = {name: value for name, value in given.items() if name not in _STAGE_HEADERS}
    body = _one_token(exchange.body)

    async def ask(stage: WorkStage, address: str) -> tuple[WorkStage, str]:
        tagged = {**headers, STAGE: stage.value.encode()}
        async with post(address, exchange.path, tagged, body) as response:
            text = await response.body()
            if response.status != HTTPStatus.OK:
                raise StageRefusedError(response.status, text)
            return stage, response.served_by

    try:
        async with asyncio.TaskGroup() as group:
            encoders = [
                group.create_task(ask(WorkStage.ENCODE, each), name=f"encode at {each}")
                for each in _addresses(given.get(ENCODERS))
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    served = [task.result() for task in encoders]
    prefillers = _addresses(given.get(PREFILLER))
    if prefillers:
        served.append(await ask(WorkStage.PREFILL, prefillers[0]))
    return served


def stages_header(stages: Iterable[tuple[WorkStage, str]], more: bytes = b"") -> bytes:
    """Return the header line of the response that names the server of each stage."""
    own = ",".join(f"{stage.value}={name}" for stage, name in stages).encode("latin-1")
    return b"%b: %b%b\r\n" % (STAGES, own, b"," + more if more else b"")


async def forward(exchange: Exchange, rank: str, own_name: str) -> StageOutcome:
    """Forward the request to another server and pass its response through.

    Raises:
        StageError: The server cannot be reached or closes the connection early.
    """
    headers = {name: value for name, value in exchange.headers.items() if name != DATA_PARALLEL}
    async with post(rank, exchange.path, headers, exchange.body) as response:
        served_by = response.served_by
        later = response.headers.get(STAGES, b"")
        own = [(WorkStage.FORWARDED, own_name)]
        exchange.common_headers = (
            b"server: fake-vllm\r\nx-served-by: %b\r\n" % served_by.encode("latin-1")
        ) + stages_header(own if later else [*own, (WorkStage.DECODE, served_by)], later)
        content_type = response.headers.get(b"content-type", b"application/json")
        if response.status == HTTPStatus.OK and b"content-length" not in response.headers:
            await _stream(exchange, response, content_type)
        else:
            exchange.respond(response.status, await response.body(), content_type)
        return StageOutcome.COMPLETED if response.status == HTTPStatus.OK else StageOutcome.REFUSED


async def _stream(exchange: Exchange, response: UpstreamResponse, content_type: bytes) -> None:
    writable = asyncio.Event()
    exchange.on_writable = writable.set
    exchange.start_stream(content_type)
    async for part in response.parts():
        exchange.write(part)
        while not exchange.writable:  # the client is slower than the other server
            writable.clear()
            await writable.wait()
    exchange.finish()


def _addresses(header: bytes | None) -> list[str]:
    parts = (header or b"").decode("latin-1").split(",")
    return [part.strip() for part in parts if part.strip()]


def _one_token(body: bytes) -> bytes:
    try:
        fields: dict[str, object] = dict(_decode_fields(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VllmApiError(str(error)) from error
    fields.pop("stream_options", None)
    for name in ("max_completion_tokens", "min_tokens"):
        if name in fields:
            fields[name] = 1
    # Each API has its own name for the limit and ignores the other's.
    return msgspec.json.encode(fields | {"max_tokens": 1, "max_output_tokens": 1, "stream": False})
