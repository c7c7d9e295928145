"""The pages of all workers are read from processes that end and start meanwhile."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from epp.admin.decision_record import DecisionsPage
from epp.observability import Response
from epp.settings import ServeSettings
from epp.workers import front as front_module
from epp.workers.front import Front
from epp.workers.merged_metrics import Page

REQUESTS = b"llm_d_epp_request_total"
PAGE = b"# HELP %b Requests.\n# TYPE %b counter\n%b %d.0\n"


class Worker:
    """A worker that the test starts again."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lives = 1
        self.is_running = self.is_ready = True
        self.requests = 0
        self.place = cast("Any", SimpleNamespace(metrics_socket=Path(f"pages-{index}")))


async def test_a_page_counts_for_the_process_that_sent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Worker(0), Worker(1)]
    ends: list[Worker] = []

    async def fetch(socket: Path, target: bytes, **_: object) -> Response:
        worker = workers[int(socket.name[-1])]
        body = PAGE % (REQUESTS, REQUESTS, REQUESTS, worker.requests)
        while ends:  # it has just answered
            ended = ends.pop()
            ended.lives, ended.requests = ended.lives + 1, 0
        return Response(HTTPStatus.OK, "text/plain", body)

    monkeypatch.setattr(front_module, "fetch", fetch)
    settings = ServeSettings(**cast("Mapping[str, Any]", {"config": None}))
    front = Front(settings, workers, lambda: None)

    async def total() -> float:
        refused, page = await front._merge({})
        assert refused is None
        return _value(page)

    workers[0].requests = 5
    ends.append(workers[0])
    assert await total() == 5
    workers[0].requests = 2
    assert await total() == 7
    assert await total() == 7


async def test_decisions_are_shown_while_a_worker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = {"pages-0": HTTPStatus.SERVICE_UNAVAILABLE, "pages-1": HTTPStatus.OK}

    async def fetch(socket: Path, target: bytes, **_: object) -> Response:
        page = DecisionsPage(decisions=[], newest=7, kept=0, sampled=1.0)
        return Response(statuses[socket.name], "application/json", msgspec.json.encode(page))

    monkeypatch.setattr(front_module, "fetch", fetch)
    settings = ServeSettings(**cast("Mapping[str, Any]", {"config": None}))
    front = Front(settings, [Worker(0), Worker(1)], lambda: None)
    shown = await front._decisions(b"/debug/decisions", {}, {})
    assert (shown.status, msgspec.json.decode(shown.body)["newest"]) == (HTTPStatus.OK, 7)
    statuses["pages-1"] = HTTPStatus.BAD_REQUEST
    assert (await front._decisions(b"/debug/decisions", {}, {})).status == HTTPStatus.BAD_REQUEST
    statuses["pages-1"] = HTTPStatus.SERVICE_UNAVAILABLE
    shown = await front._decisions(b"/debug/decisions", {}, {})
    assert shown.status == HTTPStatus.SERVICE_UNAVAILABLE


def _value(page: Page) -> float:
    return page[REQUESTS].samples[REQUESTS]
