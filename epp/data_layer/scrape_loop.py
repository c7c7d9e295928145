"""Times the scrapes of an endpoint for one source: once per interval, less often while it is idle.

A scrape runs in a task. Between two scrapes there is only an entry in the timetable: a task for
each of a thousand idle endpoints would take 4 MB.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from epp.data_layer.load_estimates import LoadEstimates
from epp.data_layer.scrape import Scrape
from epp.data_layer.scrape_rest import ScrapeRest
from epp.timetable import Timetable

_SLACK: Final = 0.1
"""Fraction of a rest by which a scrape may start early, so that idle endpoints are scraped
together. With half of it 100 idle endpoints cost 0.029 cores instead of 0.025."""
_BUSY_SLACK: Final = 0.2
"""Fraction of the base interval by which a scrape of a busy endpoint may start early. The mean
interval stays the same: an early scrape does not move the next one."""
_MAX_BUSY_SLACK_SECONDS: Final = 0.1


class ScrapeLoop:
    """Repeats a scrape.

    Args:
        scrape: The scrape.
        rest: Lengthens the interval while the endpoint is idle; None for a fixed interval.
        timetable: Starts the scrapes.
        load_estimates: Notified of longer intervals.
        clock: Monotonic clock in seconds.
        name: Name of the tasks.
    """

    __slots__ = (
        "_at",
        "_clock",
        "_due",
        "_group",
        "_is_stopped",
        "_load_estimates",
        "_name",
        "_rest",
        "_task",
        "_ticket",
        "_timetable",
        "scrape",
    )

    def __init__(
        self,
        scrape: Scrape,
        rest: ScrapeRest | None,
        *,
        timetable: Timetable,
        load_estimates: LoadEstimates,
        clock: Callable[[], float],
        name: str,
    ) -> None:
        self.scrape = scrape
        self._rest = rest
        self._timetable = timetable
        self._load_estimates = load_estimates
        self._clock = clock
        self._name = name
        self._group: asyncio.TaskGroup | None = None
        self._due = 0.0
        self._at = 0.0
        """When the next scrape is to start."""
        self._ticket: int | None = None
        """Entry in the timetable; None while a scrape runs."""
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def start(self, group: asyncio.TaskGroup, phase: float, *, delay_seconds: float) -> None:
        """Scrape once after a delay, then at a phase of every interval.

        Args:
            group: Runs the scrapes.
            phase: From 0.0 to 1.0.
            delay_seconds: Time until the first scrape.
        """
        self._group = group
        at = self._clock() + delay_seconds
        self._due = at + phase * self.scrape.pace.configured_seconds
        self._enter(at)

    def stop(self) -> None:
        """Cancel the current scrape; close the connection in the next step of the event loop."""
        self._is_stopped = True
        if self._ticket is not None:
            self._timetable.remove(self._ticket)
            self._forget_entry()
        if self._task is None:
            self.scrape.close()
        else:
            self._task.add_done_callback(lambda _: self.scrape.close())
            self._task.cancel()

    def _begin(self) -> None:
        assert self._group is not None  # noqa: S101 - it has been started
        self._forget_entry()
        self._task = self._group.create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        # The scrape may have started early.
        await self.scrape.run(max(0.0, self._clock() - self._at))
        self._task = None
        if not self._is_stopped:
            self._plan()

    def _plan(self) -> None:
        """Enter the next scrape into the timetable."""
        now, pace = self._clock(), self.scrape.pace
        tick, due = pace.configured_seconds, self._due
        if now > due:  # late: skip the missed ticks, keep the phase
            due += tick * -(-(now - due) // tick)
        due += pace.interval_seconds - tick  # expensive pages skip ticks
        self._due = due + tick
        rest_seconds = self._rest_seconds()
        at = due + rest_seconds
        if at - now <= tick:
            self._enter(at)
            return
        self._enter(at, slack_seconds=_SLACK * rest_seconds)
        if self._rest is not None:
            self.scrape.endpoint.load.waiting_for_requests.append(self._request_sent)

    def _rest_seconds(self) -> float:
        """Return how much longer the next interval is because the endpoint is idle or failing."""
        if self._rest is None:
            return 0.0
        state = self.scrape.state
        interval = self._rest.next_interval(state.polls.in_a_row)
        tick = self.scrape.pace.configured_seconds
        if interval > tick:
            self._load_estimates.slow_down(self.scrape.endpoint, interval)
        state.rest_seconds = interval - tick
        return state.rest_seconds

    def _request_sent(self) -> None:
        """End the rest: scrape after one base interval, when the request has reached the server."""
        if self._ticket is None:
            return
        self._timetable.remove(self._ticket)
        tick = self.scrape.pace.configured_seconds
        at = self._clock() + tick
        self._due = at + tick
        self._enter(at)

    def _enter(self, at: float, *, slack_seconds: float = 0.0) -> None:
        tick = self.scrape.pace.configured_seconds
        slack_seconds = slack_seconds or min(_BUSY_SLACK * tick, _MAX_BUSY_SLACK_SECONDS)
        self._at = at
        self._ticket = self._timetable.add(at, self._begin, slack_seconds=slack_seconds)

    def _forget_entry(self) -> None:
        self._ticket = None
        waiting = self.scrape.endpoint.load.waiting_for_requests
        if self._request_sent in waiting:
            waiting.remove(self._request_sent)
