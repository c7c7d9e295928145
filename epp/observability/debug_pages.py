"""Debug pages for operators: JSON documents below ``/debug/``.

The pages show state of the main event loop, so they are rendered there, in one callback, as a
consistent snapshot. The request waits on the loop of the HTTP server.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote

import structlog

from epp.observability.admin_calls import AdminAction, AdminError
from epp.observability.http_connection import Response, as_json
from epp.observability.loop_calls import LoopCalls, LoopStalledError, LoopStoppedError

_log = structlog.get_logger(__name__)

PREFIX = "/debug"
_NO_STORE = (("Cache-Control", "no-store"),)
OURS = "the endpoint picker"
NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})


class DebugPage(NamedTuple):
    """A document that is rendered for each request."""

    document: Callable[[], object]
    """Called on the event loop. Values without a JSON type are shown as their ``repr``."""
    owner: str = OURS
    """The component named in the error if rendering fails."""
    search: Callable[[Mapping[str, str]], object] | None = None
    """Called in place of ``document`` if there is a query, with its parameters; a page without it
    ignores queries. Raises an :class:`AdminError` that says what is allowed."""
    item: Callable[[str], object] | None = None
    """Returns the document at a path below the page's own; None if there are none. Raises an
    :class:`AdminError` if there is none."""


DebugPagesCallback = Callable[[], Mapping[str, DebugPage]]
"""Returns the current pages by path below ``/debug/``; called on the event loop."""


def no_pages() -> Mapping[str, DebugPage]:
    """Return no pages."""
    return {}


class DebugPages:
    """Handles GET requests below ``/debug/``.

    Args:
        pages: Returns the current pages.
        calls: Renders them on the event loop.
    """

    def __init__(self, pages: DebugPagesCallback, calls: LoopCalls) -> None:
        self._pages = pages
        self._calls = calls

    async def respond(self, path: str, given: Mapping[str, str] = NO_PARAMETERS) -> Response:
        """Return the page at ``path``; runs on the loop of the HTTP server.

        Args:
            path: Path of the URL.
            given: Parameters of its query.
        """
        return await self._on_loop(lambda: self._made(name_of(path), given))

    async def act(
        self, name: str, action: AdminAction, given: Mapping[str, str], client: str
    ) -> Response:
        """Make a change and return its result; runs on the loop of the HTTP server."""
        return await self._on_loop(lambda: _acted(name, action, given, client))

    async def _on_loop(self, respond: Callable[[], Response]) -> Response:
        try:
            return await self._calls.call(respond)
        except (LoopStoppedError, LoopStalledError) as error:
            return _error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _made(self, name: str, given: Mapping[str, str]) -> Response:
        owner = OURS
        try:
            pages = self._pages()
            found = _found(pages, name)
            if found is None:
                return _error_response(
                    HTTPStatus.NOT_FOUND,
                    f"there is no page {_url(name)}",
                    pages=[_url(each) for each in sorted(pages)],
                )
            page, rest = found
            owner = page.owner
            if rest and page.item is not None:
                document = page.item(rest)
            elif given and page.search is not None:
                document = page.search(given)
            else:
                document = page.document()
            return Response(HTTPStatus.OK, "application/json", as_json(document), _NO_STORE)
        except AdminError as error:
            return _error_response(error.status, str(error))
        except (Exception, SystemExit) as error:  # a page may be a plugin's
            _log.exception("debug page failed", page=_url(name), owner=owner)
            return _error_response(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"{owner} failed to make this page: {type(error).__name__}: {error}",
            )


def _found(pages: Mapping[str, DebugPage], name: str) -> tuple[DebugPage, str] | None:
    """Return the page at ``name``, or the one with an item there, and the item's path; or None."""
    if (page := pages.get(name)) is not None:
        return page, ""
    head, slash, rest = name, "/", ""
    while slash:
        head, slash, part = head.rpartition("/")
        rest = f"{part}/{rest}" if rest else part
        page = pages.get(head)
        if page is not None and page.item is not None:
            return page, rest
    return None


def name_of(path: str) -> str:
    """Return the part of a path below ``/debug/``."""
    return path.removeprefix(PREFIX).strip("/")


def _acted(name: str, action: AdminAction, given: Mapping[str, str], client: str) -> Response:
    try:
        document = action(given)
    except AdminError as error:
        return _error_response(error.status, str(error))
    except Exception as error:
        _log.exception("changing call failed", call=_url(name), parameters=given)
        return _error_response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
    _log.info("changing call", call=_url(name), parameters=given, client=client)
    return Response(HTTPStatus.OK, "application/json", as_json(document), _NO_STORE)


def _error_response(status: HTTPStatus, error: str, **more: object) -> Response:
    return Response.of_error(status, error, *_NO_STORE, **more)


def _url(name: str) -> str:
    return quote(f"{PREFIX}/{name}")
