"""What operators ask a running endpoint picker: JSON documents below ``/debug/``.

They tell of what lives on the event loop, so they are made there, between two of its callbacks:
nothing moves while a page is made. Whoever asks waits in a thread of the HTTP server's.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import structlog

from epp.observability.bounded_text import MOST_ANSWER_CHARS, json_line, printable

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = structlog.get_logger(__name__)

PREFIX = "/debug"
OURS = "the endpoint picker"
LIMIT_SECONDS = 2.0
"""How long the event loop is waited for."""


class Page(NamedTuple):
    """A document, made anew each time that it is asked for."""

    document: Callable[[], object]
    """Called on the event loop. What JSON has no word for is shown as its ``repr``."""
    owner: str = OURS
    """Who is to blame if it cannot be made."""


Pages = Callable[[], Mapping[str, Page]]
"""Returns the pages that there are now, by their path below ``/debug/``; called on the loop."""


def no_pages() -> Mapping[str, Page]:
    """Return none."""
    return {}


class DebugPages:
    """Answers GETs below ``/debug/``, and hands everything else on."""

    def __init__(
        self,
        rest: "WSGIApplication",
        pages: Pages,
        loop: asyncio.AbstractEventLoop,
        *,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """Put the pages in front of ``rest``.

        Args:
            rest: Answers what is not below ``/debug/``.
            pages: What there is.
            loop: Where pages are made.
            limit_seconds: How long the loop is waited for.
        """
        self._rest = rest
        self._pages = pages
        self._loop = loop
        self._limit_seconds = limit_seconds

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request, in the thread that it has."""
        # WSGI's texts are bytes in disguise.
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            return self._rest(environ, start_response)
        method = environ["REQUEST_METHOD"]
        if method in {"GET", "HEAD"}:
            status, body = self._answer(path.removeprefix(PREFIX).strip("/"))
        else:
            status, body = _told(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not allowed here; use GET or HEAD"
            )
        headers = [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [] if method == "HEAD" else [body]

    def _answer(self, name: str) -> tuple[HTTPStatus, bytes]:
        made: Future[tuple[HTTPStatus, bytes]] = Future()

        def make() -> None:
            if made.set_running_or_notify_cancel():
                made.set_result(self._made(name))

        try:
            self._loop.call_soon_threadsafe(make)
        except RuntimeError:
            return _told(HTTPStatus.SERVICE_UNAVAILABLE, "the endpoint picker has stopped")
        try:
            return made.result(self._limit_seconds)
        except TimeoutError:
            made.cancel()
            return _told(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the event loop did not answer within {self._limit_seconds:g} s: something blocks"
                " it, or it has more to do than it can. After 5 s the log says where it stands;"
                " /metrics is served all the same",
            )

    def _made(self, name: str) -> tuple[HTTPStatus, bytes]:
        owner = OURS
        try:
            pages = self._pages()
            page = pages.get(name)
            if page is None:
                return _told(
                    HTTPStatus.NOT_FOUND,
                    f"there is no page {_url(name)}",
                    pages=[_url(each) for each in sorted(pages)],
                )
            owner = page.owner
            return HTTPStatus.OK, _json(page.document())
        except (Exception, SystemExit) as error:  # a page may be a plugin's
            _log.exception("debug page failed", page=_url(name), owner=owner)
            return _told(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"{owner} failed to make this page: {type(error).__name__}: {error}",
            )


def _told(status: HTTPStatus, error: str, **more: object) -> tuple[HTTPStatus, bytes]:
    return status, _json({"error": printable(error, MOST_ANSWER_CHARS), **more})


def _json(document: object) -> bytes:
    return json_line(document) + b"\n"


def _url(name: str) -> str:
    return quote(f"{PREFIX}/{name}")
