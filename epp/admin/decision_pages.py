"""The pages ``/debug/decisions`` and ``/debug/decisions/REQUEST_ID``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Final

from epp.admin.captured import CapturedDecision
from epp.admin.decision_record import DecisionRecord, DecisionsPage
from epp.admin.decision_ring import DecisionRing
from epp.admin.rendering import DecisionRenderer
from epp.observability import AdminError, DebugPage, cut

PATH: Final = "decisions"
MAX_LINES: Final = 1000
_LINES: Final = 20
_SHOWN_IDS = 5

_ALLOWED = (
    f"limit, a number from 1 to {MAX_LINES}; endpoint, a name or an address; slowest, true or"
    " false; since, a sequence number"
)


class DecisionPages:
    """The pages of one pool.

    Args:
        ring: The decisions.
        clock: Monotonic seconds, the clock of the decisions.
        wall_clock: Unix time.
        pool: Name of the pool, where the process serves several; "" otherwise.
    """

    def __init__(
        self,
        ring: DecisionRing,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        pool: str = "",
    ) -> None:
        self._ring = ring
        self._clock = clock
        self._wall_clock = wall_clock
        self._pool = pool

    def pages(self) -> dict[str, DebugPage]:
        """Return the pages by path."""
        return {PATH: DebugPage(lambda: self.lines({}), search=self.lines, item=self.record)}

    def lines(self, given: Mapping[str, str]) -> DecisionsPage:
        """Return the lines that a query asks for.

        Raises:
            AdminError: A parameter is invalid.
        """
        if unknown := sorted(given.keys() - {"limit", "endpoint", "slowest", "since"}):
            raise _bad(f"there is no parameter {unknown[0]!r}")
        limit = _number(given, "limit", _LINES, 1, MAX_LINES)
        since = _number(given, "since", 0, 0, None)
        endpoint, order = given.get("endpoint", ""), given.get("slowest", "false")
        if order not in {"true", "false"}:
            raise _bad(f"slowest is {order!r}")
        ring = self._ring
        found: Iterable[CapturedDecision] = (
            each
            for each in ring
            if each.sequence > since and (not endpoint or _is_at(each, endpoint))
        )
        if order == "true":
            now = self._clock()
            found = sorted(
                found,
                key=lambda each: (each.ending.at if each.ending else now) - each.received_at,
                reverse=True,
            )
        renderer = self._renderer()
        return DecisionsPage(
            decisions=[renderer.line(each) for each in islice(found, limit)],
            newest=ring.newest,
            kept=len(ring),
            sampled=round(ring.sampled, 4),
        )

    def record(self, request_id: str) -> DecisionRecord:
        """Return the newest decision of a request, by its id or the beginning of its id.

        Raises:
            AdminError: The decision is not kept, or several ids have this beginning.
        """
        found = self._ring.find(request_id)
        if found is None:
            begun = [each for each in self._ring if cut(each.request_id).startswith(request_id)]
            names = sorted({cut(each.request_id) for each in begun})
            if len(names) > 1:
                raise AdminError(HTTPStatus.NOT_FOUND, _ambiguous(request_id, names))
            if not begun:
                raise AdminError(HTTPStatus.NOT_FOUND, self._why_missing(request_id))
            found = begun[0]
        return self._renderer().record(found)

    def _renderer(self) -> DecisionRenderer:
        return DecisionRenderer(self._wall_clock() - self._clock(), self._pool)

    def _why_missing(self, request_id: str) -> str:
        ring = self._ring
        share = "" if ring.sampled == 1.0 else f", a sample of {ring.sampled:.0%}"
        return (
            f"no decision of the request {request_id!r} is in memory, which has the newest"
            f" {len(ring)}{share}. Raise --explain-decisions, --explain-bytes or --explain-rate to"
            " keep more"
        )


def _ambiguous(request_id: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_IDS} more" if len(names) > _SHOWN_IDS else ""
    shown = ", ".join(names[:_SHOWN_IDS])
    return f"{len(names)} request ids begin with {request_id!r}: {shown}{more}; give more of it"


def _is_at(entry: CapturedDecision, endpoint: str) -> bool:
    known = {entry.endpoint, entry.endpoint.rpartition("/")[2], entry.address}
    if entry.ending is not None and entry.ending.served is not None:
        name, address = entry.ending.served
        known |= {name, name.rpartition("/")[2], address}
    return endpoint in known


def _number(given: Mapping[str, str], name: str, default: int, least: int, most: int | None) -> int:
    text = given.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1  # noqa: PLR2004
    if number < least or (most is not None and number > most):
        raise _bad(f"{name} is {text!r}")
    return number


def _bad(what: str) -> AdminError:
    return AdminError(HTTPStatus.BAD_REQUEST, f"{what}; the parameters are: {_ALLOWED}")
