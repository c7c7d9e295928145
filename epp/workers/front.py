"""The metrics port of all workers: one page of metrics, and the pages of each worker."""

import asyncio
import gzip
import ssl
from collections.abc import Callable, Hashable, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Final, Protocol, Self
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

import structlog
from prometheus_client.exposition import choose_encoder, gzip_accepted

from epp.listening import make_metrics_tls
from epp.observability import HttpLimits, MetricsRegistry, Response
from epp.observability.exposition import Exposition
from epp.observability.http_connection import Request
from epp.observability.http_server import HttpServer
from epp.observability.page_queue import PageQueue
from epp.observability.servers import listen_for_metrics
from epp.settings import ServeSettings
from epp.workers.merged_decisions import PATH as DECISIONS
from epp.workers.merged_decisions import merged_decisions
from epp.workers.merged_metrics import MergedMetrics, Page, read_page, written
from epp.workers.page_client import InvalidTargetError, WorkerAwayError, fetch
from epp.workers.place import Place
from epp.workers.worker_metrics import SupervisorMetrics

_log = structlog.get_logger(__name__)

_METRICS: Final = "/metrics"
_CHOICE: Final = "worker"
_OPENMETRICS: Final = "application/openmetrics-text"
_GZIP_LEVEL: Final = 1
_MAX_WAITING_PAGES: Final = 8
_ANSWERED_ELSEWHERE: Final = frozenset({"accept-encoding", "host", "connection"})
"""Headers of requests that concern this connection only."""


Process = tuple[int, int]
"""One process of a worker: the number of the worker, and how many it has started."""


class Fronted(Protocol):
    """The part of a worker that the front uses."""

    place: Place
    lives: int

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""

    @property
    def is_ready(self) -> bool:
        """Whether it decides requests."""

    @property
    def index(self) -> int:
        """Its number."""


class Front:
    """Serves the metrics port; an asynchronous context manager.

    Args:
        settings: Host, port and certificates.
        workers: All workers.
        leader: Returns the worker that scrapes, whose pages answer for all; None while there is
            none.
    """

    def __init__(
        self,
        settings: ServeSettings,
        workers: Sequence[Fronted],
        leader: Callable[[], Fronted | None],
    ) -> None:
        self.port = 0
        """The port number."""
        self._settings = settings
        self._workers = workers
        self._leader = leader
        self._merged = MergedMetrics()
        self._own = MetricsRegistry()
        self._own.register(SupervisorMetrics(workers))
        self._queue: PageQueue[tuple[Response | None, Page]] = PageQueue(_MAX_WAITING_PAGES)
        self._server: HttpServer | None = None
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        tls, follower = await asyncio.to_thread(make_metrics_tls, self._settings)
        await asyncio.to_thread(self._listen, tls)
        if follower is not None:
            self._following = asyncio.create_task(follower.run(), name="metrics-certificates")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    def _listen(self, tls: ssl.SSLContext | None) -> None:
        settings = self._settings
        listening = listen_for_metrics(settings.host, settings.metrics_port)
        self.port = listening[0].getsockname()[1]
        self._server = HttpServer(
            "metrics",
            listening,
            self._respond,
            HttpLimits(max_connections=settings.max_metrics_connections),
            tls=tls,
            methods=("GET", "HEAD", "POST"),
        )

    async def _respond(self, request: Request) -> Response:
        raw, _, query = request.target.partition(b"?")
        path = unquote_to_bytes(raw).decode("utf-8", "replace")
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        chosen = [value for name, value in given if name == _CHOICE]
        rest = [each for each in given if each[0] != _CHOICE]
        target = raw + (b"?" + urlencode(rest).encode() if rest else b"")
        headers = {k: v for k, v in request.headers.items() if k not in _ANSWERED_ELSEWHERE}
        if chosen:
            return await self._of_one(chosen[-1], request.method, target, headers)
        if request.method == "POST":
            return await self._of_all(target, headers)
        if path == _METRICS:
            names = [value for name, value in rest if name == "name[]"]
            return await self._metrics(request, names, headers)
        return await self._page(path.rstrip("/"), target, dict(rest), headers)

    async def _page(
        self, path: str, target: bytes, given: Mapping[str, str], headers: Mapping[str, str]
    ) -> Response:
        if path == f"/debug/{DECISIONS}":
            return await self._decisions(target, given, headers)
        if path.startswith(f"/debug/{DECISIONS}/"):
            return await self._first(target, headers)
        leader = self._leader()
        if leader is None:
            return _away("no worker runs at the moment")
        return await _fetched(leader, "GET", target, headers)

    async def _of_one(
        self, text: str, method: str, target: bytes, headers: Mapping[str, str]
    ) -> Response:
        for each in self._workers:
            if text == str(each.index):
                return await _fetched(each, method, target, headers)
        known = f"from 0 to {len(self._workers) - 1}"
        return Response.of_error(
            HTTPStatus.NOT_FOUND, f"there is no worker {text[:20]!r}; their numbers are {known}"
        )

    async def _each(
        self, method: str, target: bytes, headers: Mapping[str, str]
    ) -> dict[Process, Response]:
        """Return the responses of all workers that run."""
        # The number of its process is read now: a worker may be started again meanwhile.
        running = {(each.index, each.lives): each for each in self._workers if each.is_running}
        found = await asyncio.gather(
            *(_fetched(each, method, target, headers) for each in running.values())
        )
        return dict(zip(running, found, strict=True))

    async def _of_all(self, target: bytes, headers: Mapping[str, str]) -> Response:
        """Make a change in every worker; return the first refusal, or a response."""
        responses = list((await self._each("POST", target, headers)).values())
        if not responses:
            return _away("no worker runs at the moment")
        return next((each for each in responses if each.status != HTTPStatus.OK), responses[0])

    async def _first(self, target: bytes, headers: Mapping[str, str]) -> Response:
        """Return the page of the worker that has it."""
        responses = list((await self._each("GET", target, headers)).values())
        if not responses:
            return _away("no worker runs at the moment")
        return min(responses, key=lambda each: each.status)

    async def _decisions(
        self, target: bytes, given: Mapping[str, str], headers: Mapping[str, str]
    ) -> Response:
        found = (await self._each("GET", target, headers)).values()
        # A worker that is starting or hangs has none that could be shown.
        responses = [each for each in found if each.status != HTTPStatus.SERVICE_UNAVAILABLE]
        if not responses:
            return _away("no worker answers at the moment")
        refused = next((each for each in responses if each.status != HTTPStatus.OK), None)
        if refused is not None:
            return refused
        body = merged_decisions([each.body for each in responses], given)
        return responses[0]._replace(body=body)

    async def _metrics(
        self, request: Request, names: Sequence[str], headers: Mapping[str, str]
    ) -> Response:
        _, content_type = choose_encoder(headers.get("accept", ""))
        is_openmetrics = content_type.startswith(_OPENMETRICS)
        # The token of a client decides whether it may read the page.
        key = is_openmetrics, headers.get("authorization", "")
        refused, page = await self._queue.page(key, lambda: self._merge(headers))
        if refused is not None:
            return refused
        own = read_page(
            b"".join(Exposition(self._own).render(openmetrics=is_openmetrics, names=()))
        )
        body = b"".join(written(own | page, openmetrics=is_openmetrics, names=names))
        if not gzip_accepted(request.headers.get("accept-encoding", "")):
            return Response(HTTPStatus.OK, content_type, body)
        packed = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
        return Response(HTTPStatus.OK, content_type, packed, (("Content-Encoding", "gzip"),))

    async def _merge(self, headers: Mapping[str, str]) -> tuple[Response | None, Page]:
        found = await self._each("GET", _METRICS.encode(), headers)
        pages: dict[Hashable, Page] = {}
        for process, response in found.items():
            if response.status == HTTPStatus.OK:
                pages[process] = await asyncio.to_thread(read_page, response.body)
            elif response.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return response, {}
        running = {(each.index, each.lives) for each in self._workers if each.is_running}
        return None, self._merged.merge(pages, running)


async def _fetched(
    worker: Fronted, method: str, target: bytes, headers: Mapping[str, str]
) -> Response:
    try:
        return await fetch(worker.place.metrics_socket, target, method=method, headers=headers)
    except InvalidTargetError as error:
        return Response.of_error(HTTPStatus.BAD_REQUEST, str(error))
    except WorkerAwayError as error:
        return _away(f"worker {worker.index}: {error}")


def _away(why: str) -> Response:
    return Response.of_error(HTTPStatus.SERVICE_UNAVAILABLE, why, ("Retry-After", "1"))
