"""The entry of one request in the request log, from its arrival to its end."""

from __future__ import annotations

import time

from epp.lab.fleet.process import FakeProcess
from epp.lab.fleet.request_log import RequestLog, ServedRequest
from epp.lab.fleet.sequence import Sequence
from epp.lab.fleet.stages import WorkStage


class RequestEntry:
    """The log entry of a request that has not ended."""

    __slots__ = ("_log", "_process", "arrived_at", "path", "request_id", "stage", "worker")

    def __init__(
        self,
        log: RequestLog,
        process: FakeProcess,
        *,
        request_id: str,
        worker: int,
        path: str,
        arrived_at: float,
    ) -> None:
        self._log = log
        self._process = process
        self.request_id = request_id
        """Its id."""
        self.worker = worker
        """Index of the server."""
        self.path = path
        """Path of the API."""
        self.arrived_at = arrived_at
        """When its body was complete, in seconds since the epoch."""
        self.stage: WorkStage | None = None
        """Its part of the work; None until it begins."""

    def ended(self, outcome: str, status: int = 0, sequence: Sequence | None = None) -> None:
        """Add the request to the log.

        Args:
            outcome: `completed`, `aborted` or `refused`.
            status: HTTP status; 0 without a response.
            sequence: Its sequence in the engine, if it had one.
        """
        entry = ServedRequest(
            request_id=self.request_id,
            worker=self.worker,
            server=self._process.name,
            restarts=self._process.restarts,
            path=self.path,
            stage=None if self.stage is None else self.stage.value,
            outcome=outcome,
            status=status,
            arrived_at=self.arrived_at,
            finished_at=time.time(),
        )
        if sequence is not None:
            wall_time, rank = self._process.wall_time, sequence.rank
            if sequence.admitted_at:
                entry.admitted_at = wall_time(sequence.admitted_at, rank)
            if sequence.generated:
                entry.first_token_at = wall_time(sequence.first_token_at, rank)
            entry.model = sequence.request.adapter or self._process.api.model
            entry.adapter = sequence.request.adapter
            entry.prompt_tokens = sequence.prompt_tokens
            entry.cached_tokens = sequence.cached_tokens
            entry.transferred_tokens = sequence.transferred_tokens
            entry.output_tokens = sequence.generated
            entry.preemptions = sequence.preemptions
            entry.rank = rank
        self._log.add(entry)
