"""Decisions that have to wait, for example for asynchronous data producers.

Each call of an asynchronous producer runs in a task; nothing else of a request does. Its result or
its time limit continues the decision by a callback, so that everything from the last result to the
reservation is one step of the event loop, as for a request that need not wait.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from epp.request_control.errors import RequestError
from epp.request_control.plugins import EndCause
from epp.request_control.prepared_request import PreparedRequest
from epp.request_control.producer_run import AsyncStep
from epp.request_control.refusals import Refusals
from epp.request_control.routed_request import RoutedRequest

Outcome = RoutedRequest | RequestError


class PendingDecision(ABC):
    """A request whose endpoint is not chosen yet; :meth:`settle` is called once."""

    __slots__ = ("_callback", "outcome")

    def __init__(self) -> None:
        self._callback: Callable[[Outcome], None] | None = None
        self.outcome: Outcome | None = None
        """None until the request is decided or refused."""

    def then(self, callback: Callable[[Outcome], None]) -> None:
        """Call ``callback`` with the outcome, once; at once if there is one already."""
        if self.outcome is None:
            self._callback = callback
        else:
            callback(self.outcome)

    def settle(self, outcome: Outcome) -> None:
        """Record the outcome and call the callback."""
        if isinstance(outcome, RequestError):
            # The frames of its traceback refer to the request and to this: a body of 60 MB would
            # stay until the garbage collector runs.
            outcome.__traceback__ = outcome.__cause__ = outcome.__context__ = None
        self.outcome = outcome
        callback, self._callback = self._callback, None  # it may refer to this
        if callback is not None:
            callback(outcome)

    @abstractmethod
    def cancel(self, cause: EndCause) -> None:
        """Abandon the decision: nothing is reserved and the callback is not called.

        Does nothing once the decision is made.
        """


@dataclass(slots=True, eq=False)
class _ProducerCall:
    """A running call of an asynchronous producer."""

    task: asyncio.Task[None]
    limit: asyncio.TimerHandle
    began: float

    def cancel(self) -> None:
        self.limit.cancel()
        self.task.cancel()


class AwaitingProducers(PendingDecision):
    """A request that waits for asynchronous data producers; made in the event loop.

    Args:
        prepared: The request.
        steps: The producers to wait for.
        decide: Decides the request once its producers have run; may return another pending one.
        refusals: Reports a request that is refused or abandoned.
    """

    __slots__ = (
        "_calls",
        "_decide",
        "_following",
        "_loop",
        "_prepared",
        "_producer_run",
        "_refusals",
    )

    def __init__(
        self,
        prepared: PreparedRequest,
        steps: Iterable[AsyncStep],
        decide: Callable[[PreparedRequest], RoutedRequest | PendingDecision],
        refusals: Refusals,
    ) -> None:
        super().__init__()
        self._prepared = prepared
        self._producer_run = prepared.producer_run
        self._decide = decide
        self._refusals = refusals
        self._following: PendingDecision | None = None
        self._loop = asyncio.get_running_loop()
        self._calls: dict[AsyncStep, _ProducerCall] = {}
        self._start(steps)
        prepared.pipeline.request_began()

    def cancel(self, cause: EndCause) -> None:
        if self._following is not None:
            self._following.cancel(cause)
        if not self._calls:
            return
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel()
        prepared = self._prepared
        self._refusals.abandoned(prepared, cause)
        prepared.pipeline.request_ended()

    def _start(self, steps: Iterable[AsyncStep]) -> None:
        request = self._producer_run.request
        for step in steps:
            plugin = step.guard.plugin
            task = self._loop.create_task(
                self._call(step), name=f"{plugin.name} for request {request.request_id}"
            )
            task.add_done_callback(partial(self._returned, step))
            # Not asyncio.timeout(), which would wait for a plugin that suppresses cancellation.
            limit = self._loop.call_later(step.timeout_seconds, self._timed_out, step)
            self._calls[step] = _ProducerCall(task, limit, perf_counter())

    async def _call(self, step: AsyncStep) -> None:
        try:
            await step.guard.plugin.prepare_async(
                self._producer_run.request, self._producer_run.state
            )
        except SystemExit as error:  # raised in a task, it would end the process
            raise RuntimeError(f"the plugin called sys.exit(): {error!r}") from error

    def _returned(self, step: AsyncStep, task: asyncio.Task[None]) -> None:
        error = _failure(task)
        call = self._calls.pop(step, None)
        if call is not None:  # neither timed out nor cancelled
            call.limit.cancel()
            self._settled(step, call, error)

    def _timed_out(self, step: AsyncStep) -> None:
        call = self._calls.pop(step)
        call.task.cancel()
        late = TimeoutError(f"prepare_async took longer than {step.timeout_seconds} s")
        self._settled(step, call, late)

    def _settled(self, step: AsyncStep, call: _ProducerCall, error: Exception | None) -> None:
        trace = self._prepared.trace
        if trace is not None:
            trace.begin_step()
        try:
            self._producer_run.settle(step, perf_counter() - call.began, error)
            following = self._producer_run.advance()
        finally:
            if trace is not None:
                trace.end_step()
        self._start(following)
        if not self._calls:
            self._finish()

    def _finish(self) -> None:
        prepared = self._prepared
        outcome: Outcome | PendingDecision
        try:
            outcome = self._decide(prepared)
        except Exception as error:
            outcome = self._refusals.refused_request(error, prepared)
        finally:
            prepared.pipeline.request_ended()
        if isinstance(outcome, PendingDecision):
            self._following = outcome
            outcome.then(self.settle)
        else:
            self.settle(outcome)


def _failure(task: asyncio.Task[None]) -> Exception | None:
    """Return the error of ``task``, which is done; None if it succeeded."""
    if task.cancelled():
        return RuntimeError("prepare_async raised CancelledError without being cancelled")
    error = task.exception()
    return error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))
