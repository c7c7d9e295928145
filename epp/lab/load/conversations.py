"""Sends the conversations of a workload: each request at its time, or after the one it follows."""

import asyncio
from collections import defaultdict
from collections.abc import Callable

from epp.lab.load.schedule import UNCONNECTED, UNCONNECTED_PAUSE_SECONDS, RequestSender, RunState
from epp.lab.load.workload_source import WorkloadSource
from epp.lab.traffic import Conversation, TrafficRequest, Workload


class ConversationDriver:
    """Sends conversations in an open or a closed loop.

    A conversation ends with its first failed request: later requests would contain its response.

    Args:
        workload: The conversations to send.
        source: Makes bodies of the requests.
        sender: Sends a request by its index.
        ledger: Collects the records.
        clock: Monotonic time in seconds.
        duration_seconds: No request is sent after this time; None for no limit.
    """

    def __init__(
        self,
        workload: Workload,
        source: WorkloadSource,
        sender: RequestSender,
        ledger: RunState,
        *,
        clock: Callable[[], float],
        duration_seconds: float | None,
    ) -> None:
        self._workload = workload
        self._source = source
        self._sender = sender
        self._ledger = ledger
        self._clock = clock
        self._duration_seconds = duration_seconds

    async def run(self) -> None:
        """Send all conversations, or those of the plan's duration."""
        if self._workload.concurrency is None:
            await self._open_loop()
        else:
            await self._closed_loop(self._workload.concurrency)

    async def _open_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            for conversation in self._workload.conversations():
                due = conversation[0].arrives_at or 0.0
                if not self._may_send(due):
                    return
                # Sleep even when late: the event loop must run to read responses.
                await asyncio.sleep(max(0.0, due - self._now()))
                group.create_task(
                    self._converse(conversation, due),
                    name=f"load-conversation-{conversation[0].index}",
                )

    async def _closed_loop(self, clients: int) -> None:
        conversations = self._workload.conversations()

        async def client() -> None:
            for conversation in conversations:  # shared by all clients
                if not self._may_send(self._now()):
                    return
                await self._converse(conversation, self._now())

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(), name=f"load-client-{number}")

    async def _converse(self, conversation: Conversation, due: float) -> None:
        if len(conversation) == 1:
            self._source.put(conversation[0], keeps_text=False)
            await self._send(conversation[0].index, due)
            return
        followers: defaultdict[int | None, list[TrafficRequest]] = defaultdict(list)
        for request in conversation[1:]:
            followers[request.follows].append(request)
        try:
            async with asyncio.TaskGroup() as group:
                await self._branch(conversation[0], due, followers, group)
        finally:
            for request in conversation:
                self._source.forget(request.index)

    async def _branch(
        self,
        request: TrafficRequest,
        due: float,
        followers: defaultdict[int | None, list[TrafficRequest]],
        group: asyncio.TaskGroup,
    ) -> None:
        """Send a request, then those that follow it; the first of them in this task."""
        while True:
            following = followers[request.index]
            self._source.put(request, keeps_text=bool(following))
            if not await self._send(request.index, due) or not following:
                return
            ended_at = self._now()
            for other in following[1:]:
                group.create_task(
                    self._later(other, ended_at + other.think_seconds, followers, group),
                    name=f"load-request-{other.index}",
                )
            request = following[0]
            due = ended_at + request.think_seconds
            await asyncio.sleep(request.think_seconds)
            if not self._may_send(self._now()):
                return

    async def _later(
        self,
        request: TrafficRequest,
        due: float,
        followers: defaultdict[int | None, list[TrafficRequest]],
        group: asyncio.TaskGroup,
    ) -> None:
        await asyncio.sleep(request.think_seconds)
        if self._may_send(self._now()):
            await self._branch(request, due, followers, group)

    async def _send(self, index: int, due: float) -> bool:
        """Send a request; return whether it succeeded."""
        self._ledger.begin()
        record = await self._sender(index, due, self._ledger.started_at)
        self._ledger.finish(record)
        if record.error in UNCONNECTED and self._workload.concurrency is not None:
            # A refused connection fails at once; without a pause other tasks would starve.
            await asyncio.sleep(UNCONNECTED_PAUSE_SECONDS)
        return record.succeeded

    def _now(self) -> float:
        return self._clock() - self._ledger.started_at

    def _may_send(self, seconds: float) -> bool:
        return self._duration_seconds is None or seconds < self._duration_seconds
