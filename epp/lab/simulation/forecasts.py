"""When an engine would generate the first token of a request, computed from its real state."""

from math import inf
from typing import NamedTuple

from epp.lab.fleet import Engine
from epp.lab.simulation.prompts import SimulatedRequest


class Forecast(NamedTuple):
    """The parts of a time to first token, in seconds."""

    wait: float
    """Until the request's own prompt is computed: the step in progress, and all prompts before."""
    own: float
    """To compute what is not cached of its own prompt."""

    @property
    def first_token(self) -> float:
        """The time to first token."""
        return self.wait + self.own


NEVER = Forecast(inf, inf)
"""The forecast of a server that serves nothing."""


def forecast(engine: Engine, request: SimulatedRequest, now: float) -> Forecast:
    """Return the forecast for a request that came to an engine now."""
    config, traffic = engine.config, request.traffic
    step_rest = 0.0 if engine.step_ends_at is None else max(0.0, engine.step_ends_at - now)
    keys = request.keys(config.block_size)
    usable = keys[: (traffic.prompt_tokens - 1) // config.block_size]
    hits = engine.kv.count_hits(usable, traffic.adapter or None)
    own = traffic.prompt_tokens - hits * config.block_size
    before = decoding = 0
    for sequence in engine.running:
        rest = sequence.prompt_tokens - sequence.computed
        if rest > 0:
            before += rest
        else:
            decoding += 1
    before += sum(each.prompt_tokens for each in engine.waiting)
    room = max(1, config.max_num_batched_tokens - decoding)
    step = config.step_seconds + config.decode_seconds_per_sequence * decoding
    scale = config.time_scale / config.speed / engine.pace.factor
    wait = before * (step / room + 1 / config.prefill_tokens_per_second)
    # A full batch admits nobody until a sequence ends.
    missing = engine.num_waiting + engine.num_running + 1 - config.max_num_seqs
    if missing > 0 and engine.num_running:
        left = sorted(each.request.max_tokens - each.generated for each in engine.running)
        wait += left[min(missing, len(left)) - 1] * step
    return Forecast(
        step_rest + wait * scale,
        (-(-own // room) * step + own / config.prefill_tokens_per_second) * scale,
    )
