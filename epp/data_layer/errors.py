"""Errors of the data layer; the root is :class:`DataLayerError`.

Each text says what is wrong, where, and, if the user can fix it, how.
"""

from typing import ClassVar


class DataLayerError(Exception):
    """Base of every error of the data layer."""


class DiscoveryError(DataLayerError):
    """Discovery failed, for example because of an unreadable file or an unknown host."""


class EndpointOptionError(DiscoveryError):
    """A value of ``--endpoint`` or ``--endpoint-dns`` has the wrong form."""


class DuplicateEndpointError(DiscoveryError):
    """Two endpoints of the pool have the same name."""

    def __init__(self, name: str, held_by: str, source: str) -> None:
        if held_by == source:
            text = f"endpoint {name!r} is listed twice by {source!r}: rename or remove one of them"
        else:
            text = (
                f"endpoint {name!r} is reported by {source!r}, but {held_by!r} has it already: "
                f"rename it or remove it from one of the two"
            )
        super().__init__(text)
        self.name = name
        self.held_by = held_by
        self.source = source


class ScrapeError(DataLayerError):
    """One scrape of an endpoint failed; the endpoint keeps its last metrics."""

    kind: ClassVar[str] = "scrape"
    """Cause, from a closed set: the value of a metric label. A change is logged."""


class ScrapeConnectError(ScrapeError):
    """The server could not be connected to."""

    kind = "connect"


class ScrapeResetError(ScrapeError):
    """The connection ended before the page was complete."""

    kind = "reset"


class ScrapeTimeoutError(ScrapeError):
    """The page did not arrive in time."""

    kind = "timeout"


class ScrapeStatusError(ScrapeError):
    """The server answered with something other than 200."""

    kind = "status"

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered with status {status}, expected 200")
        self.status = status


class ScrapeProtocolError(ScrapeError):
    """The response is not HTTP/1.1."""

    kind = "protocol"


class CallerBusyError(ScrapeError):
    """Too many calls to one server are waiting; this one was not made."""

    kind = "busy"


class PageTooLargeError(ScrapeError):
    """The page exceeds a limit on bytes or series; the text says how to fix that."""

    kind = "too-large"


class PageError(ScrapeError):
    """A value that the page must contain is missing or not a number."""

    kind = "page"


class ObjectFileError(DataLayerError):
    """A file of objectives and rewrites cannot be used; the text names file, line and field."""
