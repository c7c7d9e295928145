"""Counters and histograms of one engine, with vLLM's buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from itertools import accumulate

from epp.lab.fleet.sequence import FinishReason, Sequence

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_TIME_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_BUCKETS = (1.0, *(float(2**power) for power in range(3, 15)))
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_REQUEST_HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_num_preemptions",
    "request_prefill_kv_computed_tokens",
)
"""Histograms with one observation per request, in the order of `EngineStats.ended`."""


def length_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 … up to `max_model_len`."""
    bounds: list[float] = []
    power = 1
    while power <= max_model_len:
        bounds += [float(m * power) for m in (1, 2, 5) if m * power <= max_model_len]
        power *= 10
    return tuple(bounds)


class ServerHistogram:
    """A Prometheus histogram."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Seq[float]) -> None:
        self.bounds = tuple(bounds)
        """Upper bounds, without infinity."""
        self.counts = [0] * (len(self.bounds) + 1)
        """Observations per bucket, not cumulative; the last bucket has no upper bound."""
        self.sum = 0.0
        """Sum of the observations."""

    def observe(self, value: float, times: int = 1) -> None:
        """Add an observation, or several equal ones."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def observe_series(self, first: float, growth: float, count: int, times: int) -> None:
        """Add `first`, `first + growth`, … up to `count` values, each `times` times."""
        done = 0
        while done < count:
            bucket = bisect_left(self.bounds, first + done * growth)
            more = count
            if growth > 0 and bucket < len(self.bounds):
                # At least one value is in this bucket, whatever the rounding.
                more = max(done + 1, int((self.bounds[bucket] - first) / growth) + 1)
            self.counts[bucket] += (min(more, count) - done) * times
            done = more
        self.sum += (count * first + growth * (count * (count - 1) // 2)) * times

    def use_bounds(self, bounds: Seq[float]) -> None:
        """Use other bounds, and forget all observations."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def cumulated(self) -> list[int]:
        """Return the cumulative number of observations per bucket."""
        return list(accumulate(self.counts))


class EngineStats:
    """Counters of an engine since its start, for the metrics page."""

    def __init__(self, max_model_len: int) -> None:
        lengths = length_buckets(max_model_len)
        self.steps = 0
        self.preemptions = 0
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache."""
        self.prefix_hits = 0
        """Prompt tokens found there."""
        self.external_queries = 0
        """Prompt tokens requested from other servers."""
        self.external_hits = 0
        """Prompt tokens whose KV another server transferred."""
        self.prompt_tokens_transferred = 0
        """Those of `prompt_tokens` whose KV another server transferred."""
        self.prompt_tokens = 0
        """Prompt tokens of the requests that have generated a token."""
        self.prompts = 0
        """Number of these requests."""
        self.prompt_tokens_cached = 0
        """Those of `prompt_tokens` that this server did not compute."""
        self.generation_tokens = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        """Ended requests by reason."""
        self.histograms: dict[str, ServerHistogram] = {
            "request_prompt_tokens": ServerHistogram(lengths),
            "request_generation_tokens": ServerHistogram(lengths),
            "iteration_tokens_total": ServerHistogram(STEP_TOKEN_BUCKETS),
            "request_max_num_generation_tokens": ServerHistogram(lengths),
            "request_params_n": ServerHistogram(COUNT_BUCKETS),
            "request_params_max_tokens": ServerHistogram(lengths),
            "time_to_first_token_seconds": ServerHistogram(TTFT_BUCKETS),
            "inter_token_latency_seconds": ServerHistogram(TOKEN_TIME_BUCKETS),
            "request_time_per_output_token_seconds": ServerHistogram(TOKEN_TIME_BUCKETS),
            "e2e_request_latency_seconds": ServerHistogram(REQUEST_TIME_BUCKETS),
            "request_queue_time_seconds": ServerHistogram(REQUEST_TIME_BUCKETS),
            "request_inference_time_seconds": ServerHistogram(REQUEST_TIME_BUCKETS),
            "request_prefill_time_seconds": ServerHistogram(REQUEST_TIME_BUCKETS),
            "request_decode_time_seconds": ServerHistogram(REQUEST_TIME_BUCKETS),
            "request_num_preemptions": ServerHistogram(PREEMPTION_BUCKETS),
            "request_prefill_kv_computed_tokens": ServerHistogram(lengths),
        }
        """Histograms by vLLM's metric name without the prefix `vllm:`."""
        self._step_tokens = self.histograms["iteration_tokens_total"]
        self._ttft = self.histograms["time_to_first_token_seconds"]
        self._itl = self.histograms["inter_token_latency_seconds"]
        self._of_requests = [self.histograms[name] for name in _REQUEST_HISTOGRAMS]

    def step_ended(self, tokens: int) -> None:
        """Count a step that computed `tokens` tokens."""
        self.steps += 1
        self._step_tokens.observe(tokens)

    def decoded(self, sequences: int, seconds: float) -> None:
        """Count a token of each decoding sequence, after a step of this duration."""
        if sequences:
            self.generation_tokens += sequences
            self._itl.observe(seconds, sequences)

    def steps_ended(self, steps: int, sequences: int, first: float, growth: float) -> None:
        """Count steps in which `sequences` sequences decode; each takes `growth` seconds more."""
        self.steps += steps
        self._step_tokens.observe(sequences, steps)
        self.generation_tokens += steps * sequences
        self._itl.observe_series(first, growth, steps, sequences)

    def admitted(self, sequence: Sequence) -> None:
        """Count the first admission of a sequence into the batch."""
        self.prefix_queries += sequence.prompt_tokens
        local = sequence.cached_tokens - sequence.transferred_tokens
        self.prefix_hits += local
        if sequence.request.prefilled:
            self.external_queries += sequence.prompt_tokens - local
            self.external_hits += sequence.transferred_tokens

    def prefill_ended(self, sequence: Sequence, now: float) -> None:
        """Count the token that a prefill is about to generate, the first unless preempted."""
        self.generation_tokens += 1
        if sequence.generated == 0:
            self.prompts += 1
            self.prompt_tokens += sequence.prompt_tokens
            self.prompt_tokens_cached += sequence.cached_tokens
            self.prompt_tokens_transferred += sequence.transferred_tokens
            self._ttft.observe(now - sequence.arrived_at)
        else:
            self._itl.observe(now - sequence.last_token_at)

    def ended(self, sequence: Sequence, reason: FinishReason) -> None:
        """Count the end of a sequence; aborted ones are left out of the histograms."""
        self.finished[reason] += 1
        if reason is FinishReason.ABORT:
            return
        s, end, generated = sequence, sequence.last_token_at, sequence.generated
        decode = end - s.first_token_at
        values = (
            s.prompt_tokens,
            generated,
            generated,
            1,
            s.request.max_tokens,
            decode / max(1, generated - 1),
            end - s.arrived_at,
            s.admitted_at - s.arrived_at,
            end - s.admitted_at,
            s.first_token_at - s.admitted_at,
            decode,
            s.preemptions,
            s.prompt_tokens - s.cached_tokens,
        )
        for histogram, value in zip(self._of_requests, values, strict=True):
            histogram.observe(value)
