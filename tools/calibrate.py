"""Fit the engine model to a real vLLM: ``python -m tools.calibrate BEFORE AFTER``.

BEFORE and AFTER are pages of ``/metrics`` of one server, saved some time apart under a steady load
that fills its batch. The counters between them give the mean work and the mean duration of a step:

* The histogram of tokens per step divides the steps into those that only decode, which compute at
  most one token per running sequence, and those with a prefill.
* The time between tokens is the time of a step, once for each sequence that decodes in it.
* The prefill time of a request is that of its steps with a prefill.

One load cannot tell the base time of a step, its time per sequence and its time per KV token apart.
``--single`` gives the time between tokens of a lone request, which divides the first two; the time
per KV token is left at 0, so that it is part of the time per sequence.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_SAMPLE = re.compile(r"vllm:(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)")
_LE = re.compile(r'le="([^"]+)"')
_PREFIX_COMMAND = "python -m tools.calibrate"


class CalibrationError(Exception):
    """The pages do not contain the values that a fit needs."""


@dataclass(frozen=True, slots=True)
class PageSamples:
    """The samples of a page, summed over the labels that a fit does not use."""

    values: dict[str, float]
    buckets: dict[str, dict[float, float]]

    @classmethod
    def parse(cls, text: str) -> PageSamples:
        """Parse a page of vLLM."""
        values: dict[str, float] = {}
        buckets: dict[str, dict[float, float]] = {}
        for match in _SAMPLE.finditer(text):
            name, value = match["name"], float(match["value"])
            bound = _LE.search(match["labels"])
            if bound is not None:
                family = buckets.setdefault(name.removesuffix("_bucket"), {})
                family[float(bound[1])] = family.get(float(bound[1]), 0.0) + value
            else:
                values[name] = values.get(name, 0.0) + value
        return cls(values, buckets)


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of the engine model, named as in ``EngineConfig``, and the load of the fit."""

    step_seconds: float
    decode_seconds_per_sequence: float
    prefill_tokens_per_second: float
    decoding: float
    """Sequences that decode in a step without a prefill."""
    prefill_share: float
    """Share of steps with a prefill."""


def fit(before: PageSamples, after: PageSamples, *, max_num_seqs: int, single: float) -> Fit:
    """Fit the model to the load between two pages.

    Args:
        before: The first page.
        after: The later page.
        max_num_seqs: Maximum batch size of the server.
        single: Seconds between the tokens of a request that is alone on the server.

    Raises:
        CalibrationError: A counter is missing or did not grow, or the load was too light.
    """

    def grown(name: str) -> float:
        if name not in after.values:
            raise CalibrationError(f"vllm:{name} is not in the later page")
        growth = after.values[name] - before.values.get(name, 0.0)
        if growth <= 0:
            raise CalibrationError(
                f"vllm:{name} did not grow between the pages: is their order right?"
            )
        return growth

    steps = grown("iteration_tokens_total_count")
    decode_steps = _up_to(after, max_num_seqs) - _up_to(before, max_num_seqs)
    prefill_steps = steps - decode_steps
    requests = grown("time_to_first_token_seconds_count")
    gaps = grown("inter_token_latency_seconds_count")
    computed = grown("iteration_tokens_total_sum") - gaps
    if prefill_steps < 1 or decode_steps < 1:
        raise CalibrationError("the fit needs steps with a prefill and steps without one")
    prefill_seconds = grown("request_prefill_time_seconds_sum") / grown(
        "request_prefill_time_seconds_count"
    )
    # A request that is prefilled does not decode in that step; several may be in one step.
    decoding = gaps / steps
    others = max(0.0, decoding - requests / prefill_steps)
    alone = (gaps - others * prefill_steps) / decode_steps
    decode_seconds = (
        grown("inter_token_latency_seconds_sum") - others * prefill_steps * prefill_seconds
    ) / (alone * decode_steps)
    if alone <= 1 or decode_seconds <= single:
        raise CalibrationError(
            f"a step of {alone:.1f} sequences takes {decode_seconds * 1e3:.1f} ms, a lone request"
            f" {single * 1e3:.1f} ms: the load was too light, or --single is too large"
        )
    per_sequence = (decode_seconds - single) / (alone - 1)
    base = single - per_sequence
    token = (prefill_seconds - base - per_sequence * others) / (computed / prefill_steps)
    if base <= 0 or token <= 0:
        raise CalibrationError(
            f"the fit gives {base * 1e3:.2f} ms for an empty step and {token * 1e6:.1f} us for a"
            " prompt token; both must be above 0: the pages may be of different loads"
        )
    return Fit(base, per_sequence, 1 / token, alone, prefill_steps / steps)


def _up_to(page: PageSamples, tokens: float) -> float:
    """Return the steps of up to `tokens` tokens, from the buckets of the histogram."""
    counts = page.buckets.get("iteration_tokens_total", {})
    bounds = [bound for bound in counts if bound <= tokens]
    if not bounds:
        raise CalibrationError("vllm:iteration_tokens_total has no bucket for the batch size")
    return counts[max(bounds)]


def main(
    before: Annotated[Path, typer.Argument(help="Page of the beginning.")],
    after: Annotated[Path, typer.Argument(help="Page of the end.")],
    single: Annotated[
        float, typer.Option(help="Seconds between the tokens of a lone request.", metavar="SECONDS")
    ],
    max_num_seqs: Annotated[
        int, typer.Option(help="Maximum batch size of the server.", metavar="N")
    ],
) -> None:
    """Print the engine settings that fit the load between two pages of /metrics of a vLLM."""
    try:
        pages = [PageSamples.parse(path.read_text()) for path in (before, after)]
        found = fit(pages[0], pages[1], max_num_seqs=max_num_seqs, single=single)
    except (CalibrationError, OSError, UnicodeDecodeError) as error:
        print(f"{_PREFIX_COMMAND}: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    print(
        f"# {found.decoding:.1f} sequences decode in a step;"
        f" {found.prefill_share:.0%} of the steps have a prefill"
    )
    for name in (
        "step_seconds",
        "decode_seconds_per_sequence",
        "prefill_tokens_per_second",
    ):
        print(f"{name}: {getattr(found, name):.4g}")


if __name__ == "__main__":
    typer.run(main)
