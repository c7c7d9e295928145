"""A lower bound on latency: each request alone on the fastest worker, with the best possible cache.

The cache holds everything that any earlier request has computed, whatever its size, and no request
waits for another one. So the times are a lower bound for every request of the same workload, but
the throughput is not a bound: at high rates all policies are far from it.
"""

from collections.abc import Sequence

from epp.lab.fleet import EngineConfig
from epp.lab.fleet.faults import ServerFaults
from epp.lab.results import ServerAccount
from epp.lab.simulation.routing import Tokens
from epp.lab.simulation.servers import SimulatedExchange, SimulatedServer
from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualTimer


class IdealServer(SimulatedServer):
    """A server that serves each request as if it had no other, and knows all earlier prompts."""

    def __init__(
        self,
        index: int,
        config: EngineConfig,
        loop: VirtualLoop,
        cached: set[int],
    ) -> None:
        super().__init__(index, config, loop)
        self._cached = cached
        self._timers: dict[SimulatedExchange, list[VirtualTimer]] = {}

    def inject(self, faults: ServerFaults) -> None:
        """Ignore faults: without them, requests are faster."""

    def abort(self, exchange: SimulatedExchange) -> None:
        for timer in self._timers.pop(exchange, ()):
            timer.cancel()

    def _generate(self, exchange: SimulatedExchange, *, is_prefilled: bool) -> None:
        del is_prefilled
        config, traffic = self._config, exchange.request.traffic
        keys = exchange.request.keys(config.block_size)
        blocks = (traffic.prompt_tokens - 1) // config.block_size
        hits = 0
        while hits < blocks and keys[hits] in self._cached:
            hits += 1
        self._cached.update(keys)
        tokens = Tokens(traffic.prompt_tokens, traffic.output_tokens, hits * config.block_size)
        first, whole = seconds_alone(config, tokens)
        now = self._loop.time()

        def end() -> None:
            del self._timers[exchange], self._open[exchange]
            exchange.end(
                tokens,
                ServerAccount(
                    worker=self.name,
                    arrived_at=now,
                    admitted_at=now,
                    first_token_at=now + first,
                    finished_at=now + whole,
                    cached_tokens=tokens.cached,
                ),
            )

        self._timers[exchange] = [
            self._loop.set_timer(now + first, exchange.first_token),
            self._loop.set_timer(now + whole, end),
        ]


def ideal_servers(engines: Sequence[EngineConfig], loop: VirtualLoop) -> list[SimulatedServer]:
    """Return one server for each engine, all like the fastest, with one cache for all."""
    probe = Tokens(1000, 100, 0)
    fastest = min(engines, key=lambda config: seconds_alone(config, probe)[1])
    cached: set[int] = set()
    return [IdealServer(index, fastest, loop, cached) for index in range(len(engines))]


def seconds_alone(config: EngineConfig, tokens: Tokens) -> tuple[float, float]:
    """Return the time to the first and to the last token of a request that is alone."""
    prefill = tokens.prompt - tokens.cached
    chunks = -(-prefill // config.max_num_batched_tokens)
    first = chunks * config.step_seconds + prefill / config.prefill_tokens_per_second
    steps = tokens.output - 1
    context = steps * tokens.prompt + steps * (steps + 1) / 2
    step = config.step_seconds + config.decode_seconds_per_sequence
    scale = config.time_scale / config.speed
    whole = first + steps * step + context * config.kv_seconds_per_token
    return first * scale, whole * scale
