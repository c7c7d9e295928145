"""Queries model servers for their protocol, health, models and metrics."""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from errno import errorcode
from typing import Final

import httpx
import msgspec

from epp.config import PluginGraph
from epp.data_layer import EndpointSpec
from epp.doctor.clock_skew import ClockSkew
from epp.doctor.model_servers.engine_pages import cache_config_of, engine_of
from epp.doctor.model_servers.extracting import extract
from epp.doctor.model_servers.server import ModelServer, Speaks

_TIMEOUT_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
"""Maximum servers queried at the same time."""
_MAX_BYTES: Final = 8 * 2**20
_BAD_REQUEST: Final = 400


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes
    skew: ClockSkew | None


async def probe_all(
    endpoints: Sequence[EndpointSpec], graph: PluginGraph | None
) -> tuple[ModelServer, ...]:
    """Return the responses of each endpoint, in their order.

    Args:
        endpoints: The model servers.
        graph: Its data sources and extractors read the servers' pages, too; None for none.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def probe(spec: EndpointSpec) -> ModelServer:
        async with turns:
            found = await _probe(spec)
            if graph is None or not found.responds:
                return found
            extractions, metrics = await extract(spec, graph)
            return replace(found, extractions=extractions, metrics=metrics)

    return tuple(await asyncio.gather(*map(probe, endpoints)))


async def _probe(spec: EndpointSpec) -> ModelServer:
    # Any certificate is accepted, as by data sources, because the gateway verifies certificates.
    async with httpx.AsyncClient(
        timeout=_TIMEOUT_SECONDS,
        trust_env=False,
        verify=False,  # noqa: S501 - as above
    ) as client:
        fault = ""
        for scheme, speaks in (("http", Speaks.HTTP), ("https", Speaks.TLS)):
            base = f"{scheme}://{spec.address}"
            try:
                health = await _get(client, f"{base}/health")
            except (httpx.ConnectError, httpx.TimeoutException) as error:
                if speaks is Speaks.HTTP:
                    fault = _reason(error)
                    return ModelServer(
                        name=spec.name, address=spec.address, speaks=Speaks.NOTHING, fault=fault
                    )
            except httpx.HTTPError as error:
                fault = fault or _reason(error)
            else:
                if not (speaks is Speaks.HTTP and _wants_tls(health)):
                    return await _asked(client, base, spec, speaks, health)
                fault = "it responds that it wants HTTPS"
    return ModelServer(name=spec.name, address=spec.address, speaks=Speaks.NEITHER, fault=fault)


def _reason(error: Exception) -> str:
    """Return the text of the root cause: httpx says only that all attempts failed."""
    if isinstance(error, httpx.TimeoutException):
        return f"no response for {_TIMEOUT_SECONDS:g} s"
    cause: BaseException = error
    while below := cause.__cause__ or cause.__context__:
        cause = below
        while isinstance(cause, BaseExceptionGroup):  # one for each address of the host
            cause = cause.exceptions[0]
    if isinstance(cause, OSError) and cause.errno in errorcode:
        return os.strerror(cause.errno or 0)
    return str(error).rstrip(".") or type(error).__name__


def _wants_tls(response: _Response) -> bool:
    """Whether ``response`` is the error of nginx or Go for plain HTTP on an HTTPS port."""
    return response.status == _BAD_REQUEST and b"HTTPS" in response.body


async def _asked(
    client: httpx.AsyncClient, base: str, spec: EndpointSpec, speaks: Speaks, health: _Response
) -> ModelServer:
    metrics, models, version = await asyncio.gather(
        *(_try(client, f"{base}{path}") for path in ("/metrics", "/v1/models", "/version"))
    )
    page = "" if metrics is None else metrics.body.decode(errors="replace")
    return ModelServer(
        name=spec.name,
        address=spec.address,
        speaks=speaks,
        health=health.status,
        metrics_status=0 if metrics is None else metrics.status,
        engine=engine_of(page),
        version=_version_of(version),
        models=_models_of(models),
        cache_config=cache_config_of(page),
        skew=health.skew,
    )


def _models_of(response: _Response | None) -> frozenset[str] | None:
    if response is None or response.status != httpx.codes.OK:
        return None
    try:
        return frozenset(each.id for each in msgspec.json.decode(response.body, type=_Models).data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _version_of(response: _Response | None) -> str:
    if response is None or response.status != httpx.codes.OK:
        return ""
    try:
        version = msgspec.json.decode(response.body, type=_Version).version
    except (msgspec.DecodeError, RecursionError):
        return ""
    return version[:40] if version.isprintable() else ""


async def _try(client: httpx.AsyncClient, url: str) -> _Response | None:
    try:
        return await _get(client, url)
    except httpx.HTTPError:
        return None


async def _get(client: httpx.AsyncClient, url: str) -> _Response:
    """Return the response, with its body up to the maximum length of a page."""
    asked_at = time.time()
    async with client.stream("GET", url) as response:
        responded_at = time.time()
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_BYTES:
                break
    skew = ClockSkew.of(response.headers.get("date", ""), asked_at, responded_at)
    return _Response(response.status_code, bytes(body), skew)
