"""Connections to a fake API server without sockets, so that time can be virtual."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx2

from epp.kubernetes.api import ApiClient, Connection

from .fake_api import FakeApi, Request


@dataclass(frozen=True)
class Fate:
    """What happens to a call."""

    there_seconds: float = 0.005
    """Until the server executes it; it does so even if the client has given up."""
    back_seconds: float = 0.005
    loses: Literal["nothing", "request", "response"] = "nothing"


class _PausableClient(ApiClient):
    """A client in a process that may be suspended when a response arrives."""

    pause_seconds: Callable[[], float] = staticmethod(lambda: 0.0)

    async def _fetch(self, *args: Any, **kwargs: Any) -> bytes:
        try:
            return await super()._fetch(*args, **kwargs)
        finally:
            await asyncio.sleep(self.pause_seconds())


class Link:
    """The network between one client and the server."""

    def __init__(self, api: FakeApi, connection: Connection) -> None:
        self.is_cut = False
        """Whether connections are refused."""
        self.is_hung = False
        """Whether calls are neither executed nor answered."""
        self.fate: Callable[[], Fate] = Fate
        self.client = _PausableClient(connection)
        self.client._http._newest.http = httpx2.AsyncClient(
            base_url="http://fake", transport=httpx2.MockTransport(self._carry), timeout=None
        )
        self._api = api
        self._calls: set[asyncio.Task[httpx2.Response]] = set()

    async def _carry(self, request: httpx2.Request) -> httpx2.Response:
        if self.is_cut:
            raise httpx2.ConnectError("refused")
        fate = self.fate()
        if self.is_hung or fate.loses == "request":
            await asyncio.Event().wait()
        call = asyncio.create_task(self._execute(request, fate))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        response = await asyncio.shield(call)
        if self.is_hung or fate.loses == "response":
            await asyncio.Event().wait()
        await asyncio.sleep(fate.back_seconds)
        return response

    async def _execute(self, request: httpx2.Request, fate: Fate) -> httpx2.Response:
        await asyncio.sleep(fate.there_seconds)
        code, body = self._api.call(
            Request(
                request.method,
                request.url.path,
                dict(request.url.params),
                dict(request.headers),
                request.content,
            )
        )
        return httpx2.Response(code, content=json.dumps(body).encode())
