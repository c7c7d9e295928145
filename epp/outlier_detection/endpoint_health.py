"""The health of one endpoint: a state machine without I/O or a clock.

::

    healthy -> suspect -> ejected -> probing -> healthy
                  |  ^                  |
                  v  |                  v
                healthy              ejected

There are several kinds of evidence. Scrapes show whether the server is there: one that refuses
connections or does not respond is ejected, and returns as soon as scrapes succeed again. The same
holds for health checks. Responses show whether it works: one that fails requests, in a row or far
more often than others, or lets all of them wait, is ejected for a time that doubles with each
ejection, because its metrics may look fine. A returning endpoint gets a growing share of requests.
"""

from enum import StrEnum
from math import inf
from typing import Final

from epp.outlier_detection.settings import OutlierSettings

FIRST_SHARE: Final = 0.1
"""Share of requests for which a returning endpoint is a candidate, at first."""

PAGES_TO_RETURN: Final = 2
"""Successful scrapes in a row that end an ejection for failed scrapes."""

FAILED_CHECKS: Final = 2
"""Failed health checks in a row that eject an endpoint."""

RESPONSE_SECONDS: Final = 0.1
"""How long an endpoint with overdue metrics has to show by a response that it works."""

_USUAL_WAITS: Final = 3.0
"""A scrape is overdue after this many times the longest recent time of a scrape."""
_FORGET: Final = 0.95
"""Factor by which that time shrinks with each page."""

SERVER_ERROR: Final = 500
"""The lowest status that counts as a failure."""


class HealthState(StrEnum):
    """How an endpoint is used."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """There is evidence against it, but not enough; used like a healthy one."""
    EJECTED = "ejected"
    """Not used."""
    PROBING = "probing"
    """Used for a growing share of the requests."""


class Evidence(StrEnum):
    """Reason for an ejection."""

    SCRAPES = "scrapes"
    HEALTH_CHECKS = "health-checks"
    RESPONSES = "responses"
    """Failed responses in a row."""
    SUCCESS_RATE = "success-rate"
    """Far more failed or incomplete responses than at the other endpoints."""
    SILENCE = "silence"
    """No response begins, though several requests wait."""


_TIMED: Final = frozenset({Evidence.RESPONSES, Evidence.SUCCESS_RATE, Evidence.SILENCE})
"""Ejections that end after a time, not with new evidence."""


class EndpointHealth:
    """The health of one endpoint. All times are seconds of one monotonic clock."""

    __slots__ = (
        "_alive_at",
        "_checked",
        "_ejections_in_a_row",
        "_failed_checks",
        "_failed_responses",
        "_failed_scrapes",
        "_had_success",
        "_last_page_at",
        "_longest_wait",
        "_pages",
        "_returned_at",
        "_settings",
        "broken",
        "ejections",
        "ended",
        "evidence",
        "heads",
        "longest_silence",
        "reason",
        "returns_at",
        "silent_since",
        "since",
        "state",
    )

    def __init__(self, settings: OutlierSettings, now: float) -> None:
        self.state = HealthState.HEALTHY
        self.since = now
        """When the state was entered."""
        self.reason = ""
        """The last evidence against it, in words; "" for none."""
        self.evidence: Evidence | None = None
        """Reason for the current or last ejection."""
        self.returns_at = inf
        """End of an ejection that is limited in time; infinity for any other."""
        self.ejections = dict.fromkeys(Evidence, 0)
        """Number of ejections by reason."""
        self._settings = settings
        self._failed_responses = 0
        self._failed_scrapes = 0
        self._failed_checks = 0
        self._checked = False
        """Whether a health check has succeeded."""
        self.ended = 0.0
        """Recent requests that have ended, decayed."""
        self.broken = 0.0
        """The part of ``ended`` whose response failed or was incomplete."""
        self.heads = 0
        """Responses that had begun at the last look; see :mod:`.silences`."""
        self.silent_since = now
        """The last look at which a response had begun since the one before, or no streamed request
        waited."""
        self.longest_silence = 0.0
        """Longest recent silence that ended with a response, in seconds, decayed."""
        self._pages = 0
        """Pages in a row."""
        self._last_page_at: float | None = None
        self._alive_at = now
        """Last page, or response while it was watched."""
        self._longest_wait = 0.0
        self._ejections_in_a_row = 0
        self._had_success = False
        """Whether a response succeeded since the endpoint returned."""
        self._returned_at = now
        """When the endpoint was last healthy again after an ejection."""

    @property
    def is_watched(self) -> bool:
        """Whether successful responses matter, too."""
        return self.state is not HealthState.HEALTHY or self._failed_responses > 0

    def share(self, now: float) -> float:
        """Return the share of requests for which the endpoint is a candidate, 0.0 to 1.0."""
        if self.state is HealthState.EJECTED:
            return 0.0
        if self.state is not HealthState.PROBING:
            return 1.0
        if not self._had_success and self.evidence in _TIMED:
            return FIRST_SHARE
        window = self._settings.slow_start_seconds
        grown = (now - self.since) / window if window else 1.0
        return min(1.0, FIRST_SHARE + (1.0 - FIRST_SHARE) * grown)

    # --- evidence -----------------------------------------------------------------------------

    def response_failed(self, status: int, from_gateway: bool, now: float) -> None:
        """Take a response with status 5xx.

        Args:
            status: The HTTP status.
            from_gateway: The gateway made the response because it got none from the server.
            now: The time.
        """
        self._failed_responses += 1
        count = self._failed_responses
        reason = (
            f"failed response with {status}"
            if count == 1
            else f"{count} failed responses in a row, the last with {status}"
        )
        if from_gateway:
            reason += " from the gateway"
        if self.state is HealthState.EJECTED:
            return
        is_back = self.state is HealthState.PROBING
        if is_back or self._failed_responses >= self._settings.consecutive_5xx:
            self._eject(Evidence.RESPONSES, reason, now)
        else:
            self._enter(HealthState.SUSPECT, now, reason)

    def response_succeeded(self, now: float) -> None:
        """Take a response with another status: the server works, whatever scrapes say."""
        self._failed_responses = 0
        self._failed_scrapes = 0
        self._had_success = True
        self._alive_at = now
        if self.state is HealthState.SUSPECT and not self._failed_checks:
            self._enter(HealthState.HEALTHY, now)
        elif self.state is HealthState.EJECTED and self.evidence is Evidence.SCRAPES:
            self._probe(now)

    def success_rate_fell(self, reason: str, now: float) -> None:
        """Take the result of a comparison with the other endpoints."""
        if self.state is not HealthState.EJECTED:
            self._eject(Evidence.SUCCESS_RATE, reason, now)

    def fell_silent(self, reason: str, now: float) -> None:
        """Take a silence that lasts too long."""
        if self.state is not HealthState.EJECTED:
            self._eject(Evidence.SILENCE, reason, now)

    def health_check_failed(self, why: str, now: float) -> None:
        """Take a failed health check; ignored before the first successful one.

        Args:
            why: What happened, such as ``status``.
            now: The time.
        """
        if not self._checked:  # perhaps this server has no health page
            return
        self._failed_checks += 1
        count = self._failed_checks
        reason = f"{count} failed health check{'' if count == 1 else 's'} in a row ({why})"
        if self.state is HealthState.EJECTED:
            return
        if count >= FAILED_CHECKS or self.state is HealthState.PROBING:
            self._eject(Evidence.HEALTH_CHECKS, reason, now)
        else:
            self._enter(HealthState.SUSPECT, now, reason)

    def health_check_passed(self, now: float) -> None:
        """Take a successful health check."""
        self._checked = True
        self._failed_checks = 0
        if self.state is HealthState.EJECTED and self.evidence is Evidence.HEALTH_CHECKS:
            self._probe(now)

    def scrape_failed(self, why: str, now: float) -> None:
        """Take a scrape that found no server; ignored before the first page.

        Args:
            why: What happened, such as ``connect``.
            now: The time.
        """
        self._pages = 0
        if self._last_page_at is None:  # perhaps this server has no metrics
            return
        self._failed_scrapes += 1
        count = self._failed_scrapes
        reason = f"{count} failed scrape{'' if count == 1 else 's'} in a row ({why})"
        is_gone = count >= self._settings.consecutive_scrape_failures
        if self.state is HealthState.EJECTED:
            if is_gone and self.evidence in _TIMED:  # it returns when scrapes succeed again
                self.evidence, self.reason, self.returns_at = Evidence.SCRAPES, reason, inf
            return
        if is_gone or self.state is HealthState.PROBING:
            self._eject(Evidence.SCRAPES, reason, now)
        else:
            self._enter(HealthState.SUSPECT, now, reason)

    def page_scraped(self, seconds: float, now: float) -> None:
        """Take a successful scrape.

        Args:
            seconds: Time since its beginning.
            now: The time.
        """
        if self.state is not HealthState.EJECTED:
            self._longest_wait = max(seconds, self._longest_wait * _FORGET)
        self._last_page_at = self._alive_at = now
        self._failed_scrapes = 0
        self._pages += 1
        if self.state is HealthState.SUSPECT and not (
            self._failed_responses or self._failed_checks
        ):
            self._enter(HealthState.HEALTHY, now)
        elif (
            self.state is HealthState.EJECTED
            and self.evidence is Evidence.SCRAPES
            and self._pages >= PAGES_TO_RETURN
        ):
            self._probe(now)

    def overdue_at(self, waiting_since: float) -> float:
        """Return when the current scrape is overdue, unless a response comes before.

        It is infinity before the first page.

        Args:
            waiting_since: When the scrape began.
        """
        if self._last_page_at is None:
            return inf
        limit = max(self._settings.scrape_overdue_seconds, _USUAL_WAITS * self._longest_wait)
        return max(waiting_since, self._alive_at) + limit

    def page_overdue(self, now: float) -> None:
        """Take an overdue page, while other endpoints deliver theirs."""
        if self.state is HealthState.EJECTED or self._last_page_at is None:
            return
        self._pages = 0
        reason = f"no metrics for {now - self._last_page_at:.2f} s"
        if self.state is HealthState.HEALTHY:
            self._enter(HealthState.SUSPECT, now, reason)
        elif now - self.since >= RESPONSE_SECONDS:
            self._eject(Evidence.SCRAPES, reason, now)

    def pass_time(self, now: float) -> None:
        """Make the transitions that are due."""
        if self.state is HealthState.EJECTED and now >= self.returns_at:
            self._probe(now)
        elif self.state is HealthState.PROBING and self.share(now) >= 1.0:
            self._returned_at = now
            self._enter(HealthState.HEALTHY, now)

    # --- transitions --------------------------------------------------------------------------

    def _eject(self, evidence: Evidence, reason: str, now: float) -> None:
        settings = self._settings
        self.evidence = evidence
        self.ejections[evidence] += 1
        self.returns_at = inf
        if evidence in _TIMED:
            healthy_seconds = now - self._returned_at
            if (
                self.state is not HealthState.PROBING
                and healthy_seconds > settings.max_ejection_seconds
            ):
                self._ejections_in_a_row = 0
            seconds = settings.base_ejection_seconds * 2.0 ** min(self._ejections_in_a_row, 30)
            self._ejections_in_a_row += 1
            self.returns_at = now + min(seconds, settings.max_ejection_seconds)
        self._enter(HealthState.EJECTED, now, reason)

    def _probe(self, now: float) -> None:
        self._failed_responses = 0
        self._failed_scrapes = 0
        self._failed_checks = 0
        self.ended = self.broken = 0.0
        self.silent_since = now
        self._had_success = False
        self.returns_at = inf
        self._enter(HealthState.PROBING, now, self.reason)

    def _enter(self, state: HealthState, now: float, reason: str = "") -> None:
        self.reason = reason
        if state is not self.state:
            self.state, self.since = state, now
