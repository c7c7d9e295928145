"""Data-parallel ranks: one server with several engines, each with its own queue and KV cache."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from epp.lab.fleet.engine import Engine, SequenceCallback
from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.sequence import GenerationRequest, Sequence

_WAITING_WEIGHT = 4


class EngineRanks:
    """The engines of one server; the server chooses the rank of each request as vLLM does.

    vLLM's internal load balancer takes the rank with the least `4 * waiting + running`, the first
    of equal ones (`DPLBAsyncMPClient` in vllm/v1/engine/core_client.py). It knows these numbers
    from reports every 100 ms and the requests sent since; here they are current.
    """

    def __init__(self, config: EngineConfig, ranks: int) -> None:
        self.engines: Seq[Engine] = tuple(Engine(config) for _ in range(ranks))
        """The engines by rank, which is the label `engine` of vLLM's metrics."""

    @property
    def next_event_at(self) -> float | None:
        """When the state of an engine changes next; None while all are idle."""
        times = [engine.next_event_at for engine in self.engines]
        return min((at for at in times if at is not None), default=None)

    def submit(
        self,
        request: GenerationRequest,
        now: float,
        *,
        rank: int | None = None,
        on_token: SequenceCallback | None = None,
        on_end: SequenceCallback | None = None,
    ) -> Sequence:
        """Queue a request at a rank, or at the least loaded one; see `Engine.submit`."""
        if rank is None:
            rank = self.least_loaded()
        sequence = self.engines[rank].submit(request, now, on_token=on_token, on_end=on_end)
        sequence.rank = rank
        return sequence

    def abort(self, sequence: Sequence, now: float) -> None:
        """End a sequence, if it has not ended."""
        self.engines[sequence.rank].abort(sequence, now)

    def run_until(self, now: float) -> None:
        """Finish every step of every engine that is due at `now`."""
        for engine in self.engines:
            engine.run_until(now)

    def least_loaded(self) -> int:
        """Return the rank that gets a request without one."""
        return min(range(len(self.engines)), key=self._load)

    def _load(self, rank: int) -> int:
        engine = self.engines[rank]
        return _WAITING_WEIGHT * engine.num_waiting + engine.num_running
