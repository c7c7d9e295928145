"""Decisions that have to wait, of asynchronous data producers among others.

Each producer asked costs one task, and nothing else of a request runs in a task: answers and time
limits lead back to the decision by callbacks. So the step from the last answer to the reservation
is one step of the event loop, as on the straight path.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from epp.request_control.errors import RequestError
from epp.request_control.plugins import EndCause
from epp.request_control.producer_run import AsyncStep, ProducerRun
from epp.request_control.routed_request import RoutedRequest

Outcome = RoutedRequest | RequestError


class PendingDecision(ABC):
    """A request whose endpoint is not chosen yet.

    Whoever decides it calls :meth:`settle`, once.
    """

    __slots__ = ("_callback", "outcome")

    def __init__(self) -> None:
        self._callback: Callable[[Outcome], None] | None = None
        self.outcome: Outcome | None = None
        """None until it is decided."""

    def then(self, callback: Callable[[Outcome], None]) -> None:
        """Have ``callback`` called with the outcome, once; at once if there is one already."""
        if self.outcome is None:
            self._callback = callback
        else:
            callback(self.outcome)

    def settle(self, outcome: Outcome) -> None:
        """Tell whoever waits."""
        if isinstance(outcome, RequestError):
            # The frames that it came through hold the request, and this: a body of 60 MB would stay
            # until the garbage collector runs.
            outcome.__traceback__ = outcome.__cause__ = outcome.__context__ = None
        self.outcome = outcome
        callback, self._callback = self._callback, None  # which may point back
        if callback is not None:
            callback(outcome)

    @abstractmethod
    def cancel(self, cause: EndCause) -> None:
        """Take the call back: nothing is reserved and nobody called.

        Does nothing once the decision is made.
        """


@dataclass(slots=True, eq=False)
class _ProducerCall:
    """A producer that is being waited for."""

    task: asyncio.Task[None]
    limit: asyncio.TimerHandle
    began: float

    def take_back(self) -> None:
        self.limit.cancel()
        self.task.cancel()


class AwaitingProducers(PendingDecision):
    """One that waits for data producers; made in the event loop.

    Args:
        producer_run: The request's producers, as far as they have come.
        asked: Those of them to wait for.
        decide: Makes the decision once they have run, or says who will.
        abandon: Is told instead if nobody wants the decision any more.
    """

    __slots__ = ("_abandon", "_decide", "_following", "_loop", "_producer_run", "_waiting")

    def __init__(
        self,
        producer_run: ProducerRun,
        asked: Iterable[AsyncStep],
        *,
        decide: Callable[[], Outcome | PendingDecision],
        abandon: Callable[[EndCause], None],
    ) -> None:
        super().__init__()
        self._producer_run = producer_run
        self._decide = decide
        self._abandon = abandon
        self._following: PendingDecision | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[AsyncStep, _ProducerCall] = {}
        self._ask(asked)

    def cancel(self, cause: EndCause) -> None:
        if self._following is not None:
            self._following.cancel(cause)
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            call.take_back()
        self._abandon(cause)

    def _ask(self, steps: Iterable[AsyncStep]) -> None:
        request = self._producer_run.request
        for step in steps:
            plugin = step.guard.plugin
            task = self._loop.create_task(
                self._answer(step), name=f"{plugin.name} for request {request.request_id}"
            )
            task.add_done_callback(partial(self._answered, step))
            # Not asyncio.timeout(), which would wait for a plugin that swallows its cancellation.
            limit = self._loop.call_later(step.timeout_seconds, self._overran, step)
            self._waiting[step] = _ProducerCall(task, limit, perf_counter())

    async def _answer(self, step: AsyncStep) -> None:
        try:
            await step.guard.plugin.prepare_async(
                self._producer_run.request, self._producer_run.state
            )
        except SystemExit as error:  # out of a task it would end the process
            raise RuntimeError(f"the plugin called sys.exit(): {error!r}") from error

    def _answered(self, step: AsyncStep, task: asyncio.Task[None]) -> None:
        error = _failure(task)
        call = self._waiting.pop(step, None)
        if call is not None:  # not given up before
            call.limit.cancel()
            self._settled(step, call, error)

    def _overran(self, step: AsyncStep) -> None:
        call = self._waiting.pop(step)
        call.task.cancel()
        late = TimeoutError(f"prepare_async took longer than {step.timeout_seconds} s")
        self._settled(step, call, late)

    def _settled(self, step: AsyncStep, call: _ProducerCall, error: Exception | None) -> None:
        self._producer_run.settle(step, perf_counter() - call.began, error)
        self._ask(self._producer_run.advance())
        if not self._waiting:
            outcome = self._decide()
            if isinstance(outcome, PendingDecision):
                self._following = outcome
                outcome.then(self.settle)
            else:
                self.settle(outcome)


def _failure(task: asyncio.Task[None]) -> Exception | None:
    """Return why ``task``, which is done, gave nothing."""
    if task.cancelled():
        return RuntimeError("prepare_async ended as if cancelled, and nobody had cancelled it")
    error = task.exception()
    return error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))
