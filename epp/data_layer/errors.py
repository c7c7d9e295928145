"""Errors of the data layer; the root is :class:`DataLayerError`.

Each says what is wrong, where, and, if the user can do something, how to mend it.
"""

from typing import ClassVar


class DataLayerError(Exception):
    """Base of every error of the data layer."""


class DiscoveryError(DataLayerError):
    """The endpoints could not be found out: an unreadable file, an unknown host, a wrong field."""


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
    """One scrape of an endpoint failed; its last values stay and grow old."""

    kind: ClassVar[str] = "scrape"
    """Closed set of causes: a metric label, and what is logged when it changes."""


class ScrapeConnectError(ScrapeError):
    """The server could not be connected to."""

    kind = "connect"


class ScrapeResetError(ScrapeError):
    """The connection ended before the page was complete."""

    kind = "reset"


class ScrapeTimeoutError(ScrapeError):
    """The page did not come in time."""

    kind = "timeout"


class ScrapeStatusError(ScrapeError):
    """The server answered with something other than 200."""

    kind = "status"

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered with status {status}, expected 200")
        self.status = status


class ScrapeProtocolError(ScrapeError):
    """What came back is not an HTTP/1.1 answer."""

    kind = "protocol"


class CallerBusyError(ScrapeError):
    """So many calls to one server wait that another one is not made."""

    kind = "busy"


class PageTooLargeError(ScrapeError):
    """The page is larger than a limit, in bytes or in series; the text says what to do."""

    kind = "too-large"


class PageError(ScrapeError):
    """The page came, but it does not tell what it must: a value is missing or no number."""

    kind = "page"


class ObjectFileError(DataLayerError):
    """A file of objectives and rewrites cannot be used; the text names file, line and field."""
