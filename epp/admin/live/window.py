"""Rates of the endpoints and of the whole pool in the last seconds."""

from collections import deque
from typing import Final, NamedTuple

from epp.admin.live.pool_reader import PoolReading
from epp.admin.live.request_tally import EndpointTally
from epp.admin.live.traffic import TrafficReader, TrafficTotals, difference, quantile
from epp.scheduling import Endpoint

WINDOW_SECONDS: Final = 10
"""Number of one-second readings over which rates of endpoints and latencies are computed."""


class EndpointRates(NamedTuple):
    """Requests of one endpoint in the window."""

    picked_share: float
    """Share of this endpoint in the requests that were sent to any endpoint."""
    per_second: float
    """Requests that ended, per second."""
    failed_per_second: float
    """Requests that failed, per second."""
    seconds: float | None
    """Mean duration of the ended requests; None without any."""
    first_seconds: float | None
    """Median time to the head of a streamed response; None without any."""


NO_RATES: Final = EndpointRates(0.0, 0.0, 0.0, None, None)


class Point(NamedTuple):
    """The whole pool at one time; one point of each chart."""

    at: float
    """Seconds since the epoch."""
    requests_per_second: float
    errors_per_second: float
    first_byte_p50: float | None
    """Median in seconds, over streamed responses in the window."""
    first_byte_p90: float | None
    decision_p50: float | None
    """Median in seconds, over scheduling cycles in the window."""
    decision_p99: float | None
    waiting: int
    """Requests in the queue."""
    in_flight: int


class _Moment(NamedTuple):
    reading: PoolReading
    traffic: TrafficTotals


class Window:
    """The readings of the last seconds.

    Args:
        traffic: Reads the totals of the pool.
    """

    def __init__(self, traffic: TrafficReader) -> None:
        self._traffic = traffic
        self._moments: deque[_Moment] = deque(maxlen=WINDOW_SECONDS + 1)
        self.sees_bodies = False
        """Whether the times of the last point are to the first byte of bodies, not to heads."""

    def add(self, reading: PoolReading) -> None:
        """Add a reading, with the current totals."""
        self._moments.append(_Moment(reading, self._traffic.read()))

    def errors(self) -> dict[str, int]:
        """Return the errors in the window by class."""
        first, last = self._moments[0].traffic.errors, self._moments[-1].traffic.errors
        more = {code: count - first.get(code, 0) for code, count in last.items()}
        return {code: count for code, count in more.items() if count > 0}

    def requests(self) -> int:
        """Return the requests in the window that were sent to an endpoint."""
        return max(0, self._moments[-1].traffic.requests - self._moments[0].traffic.requests)

    def endpoint_rates(self) -> dict[Endpoint, EndpointRates]:
        """Return the rates of the endpoints that had requests in the window."""
        first, last = self._moments[0].reading, self._moments[-1].reading
        seconds = last.at - first.at
        if not seconds:
            return {}
        tallies = self._tallies()
        before = {each.endpoint: each.in_flight for each in first.endpoints}
        picked = {
            each.endpoint: max(0, each.in_flight - before.get(each.endpoint, 0) + tally.ended)
            for each in last.endpoints
            if (tally := tallies.get(each.endpoint, _NO_TALLY)).ended or each.in_flight
        }
        total = sum(picked.values()) or 1
        return {
            endpoint: _rates(tallies.get(endpoint, _NO_TALLY), count / total, seconds)
            for endpoint, count in picked.items()
        }

    def point(self, now: float) -> Point:
        """Return the current point of the charts; ``now`` is in seconds since the epoch."""
        first, last = self._moments[0], self._moments[-1]
        before = self._moments[-2] if len(self._moments) > 1 else last
        seconds = last.reading.at - before.reading.at or 1.0
        traffic = self._traffic
        first_byte = difference(last.traffic.first_byte, first.traffic.first_byte)
        decision = difference(last.traffic.decision, first.traffic.decision)
        errors = sum(last.traffic.errors.values()) - sum(before.traffic.errors.values())
        p50, p90 = (quantile(traffic.first_byte_bounds, first_byte, each) for each in (0.5, 0.9))
        self.sees_bodies = p50 is not None
        if not self.sees_bodies:  # without bodies, the heads of the responses are used
            heads = sorted(
                each for tally in self._tallies().values() for each in tally.first_seconds
            )
            if heads:
                p50, p90 = heads[len(heads) // 2], heads[len(heads) * 9 // 10]
        return Point(
            at=round(now, 1),
            requests_per_second=_per_second(
                last.traffic.requests, before.traffic.requests, seconds
            ),
            errors_per_second=round(max(0, errors) / seconds, 2),
            first_byte_p50=_rounded(p50),
            first_byte_p90=_rounded(p90),
            decision_p50=_rounded(quantile(traffic.decision_bounds, decision, 0.5), 6),
            decision_p99=_rounded(quantile(traffic.decision_bounds, decision, 0.99), 6),
            waiting=last.reading.waiting,
            in_flight=last.reading.in_flight,
        )

    def _tallies(self) -> dict[Endpoint, EndpointTally]:
        """Return the requests that have ended in the window, by endpoint."""
        found: dict[Endpoint, EndpointTally] = {}
        for moment in list(self._moments)[1:]:
            for endpoint, tally in moment.reading.tallies.items():
                found.setdefault(endpoint, EndpointTally()).add(tally)
        return found


_NO_TALLY: Final = EndpointTally()


def _rates(tally: EndpointTally, share: float, seconds: float) -> EndpointRates:
    ended, firsts = tally.ended, sorted(tally.first_seconds)
    return EndpointRates(
        picked_share=round(share, 4),
        per_second=round(ended / seconds, 2),
        failed_per_second=round(tally.failed / seconds, 2),
        seconds=round(tally.seconds / ended, 3) if ended else None,
        first_seconds=round(firsts[len(firsts) // 2], 3) if firsts else None,
    )


def _per_second(later: int, earlier: int, seconds: float) -> float:
    return round(max(0, later - earlier) / seconds, 2)


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
