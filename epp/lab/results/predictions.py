"""How well the endpoint picker predicted the prefix caches, and where the time of requests went."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from epp.lab.results.distribution import Distribution, percentile
from epp.lab.results.record import Record

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Prompt tokens that the endpoint picker expected in a cache, against those that were there.

    An error is predicted minus real: above 0, the cache had less than expected.
    """

    requests: int
    """Requests with both numbers."""
    predicted_rate: float
    """Fraction (0.0-1.0) of prompt tokens that were expected in a cache."""
    real_rate: float
    """Fraction (0.0-1.0) of prompt tokens that were in a cache."""
    bias_tokens: float
    """Mean error."""
    mean_error_tokens: float
    """Mean size of the error, whatever its sign."""
    error_p5_tokens: float
    """5th percentile of the error."""
    error_p50_tokens: float
    """Median error."""
    error_p95_tokens: float
    """95th percentile of the error."""
    exact: float
    """Fraction (0.0-1.0) of requests with an error below one block of 16 tokens."""
    too_high: float
    """Fraction (0.0-1.0) of requests for which at least a block too much was expected."""
    too_low: float
    """Fraction (0.0-1.0) of requests for which at least a block too little was expected."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Predictions | None":
        """Compare the predictions of succeeded requests; None if there are none."""
        known = [
            (predicted, real, record.prompt_tokens)
            for record in records
            if record.succeeded
            and (predicted := _predicted_tokens(record)) is not None
            and (real := real_cached_tokens(record)) is not None
        ]
        errors = sorted(predicted - real for predicted, real, _ in known)
        if not errors:
            return None
        count = len(errors)
        prompts = sum(prompt for _, _, prompt in known)
        too_high = sum(error >= _BLOCK_TOKENS for error in errors)
        too_low = sum(error <= -_BLOCK_TOKENS for error in errors)
        return cls(
            requests=count,
            predicted_rate=sum(each[0] for each in known) / prompts if prompts else 0.0,
            real_rate=sum(each[1] for each in known) / prompts if prompts else 0.0,
            bias_tokens=sum(errors) / count,
            mean_error_tokens=sum(map(abs, errors)) / count,
            error_p5_tokens=percentile(errors, 0.05),
            error_p50_tokens=percentile(errors, 0.5),
            error_p95_tokens=percentile(errors, 0.95),
            exact=(count - too_high - too_low) / count,
            too_high=too_high / count,
            too_low=too_low / count,
        )


_PARTS: dict[str, Callable[[Record], float | None]] = {
    "epp_decision": lambda each: each.epp.decision_seconds if each.epp else None,
    "epp_queue": lambda each: each.epp.queue_seconds if each.epp else None,
    "server_queue": lambda each: each.server.queue_seconds if each.server else None,
    "server_prefill": lambda each: each.server.prefill_seconds if each.server else None,
    "server_decode": lambda each: each.server.decode_seconds if each.server else None,
    "regret": lambda each: each.regret_seconds,
}


def parts_ms(records: Sequence[Record]) -> dict[str, Distribution]:
    """Return the parts of the time of succeeded requests that are known, and the regret.

    The names are `epp_decision`, `epp_queue` (flow control), `server_queue`, `server_prefill`,
    `server_decode`, and `regret`: how much later the first token came than from the best server.
    """
    good = [record for record in records if record.succeeded]
    found = {}
    for name, value in _PARTS.items():
        distribution = Distribution.of_seconds(
            seconds for record in good if (seconds := value(record)) is not None
        )
        if distribution is not None:
            found[name] = distribution
    return found


def _predicted_tokens(record: Record) -> int | None:
    return None if record.epp is None else record.epp.predicted_cached_tokens


def real_cached_tokens(record: Record) -> int | None:
    """Return prompt tokens from the cache, by the server's own account or else by `usage`.

    Returns None if neither reports any: a response without prompt tokens has no `usage`.
    """
    if record.server is not None and record.server.cached_tokens is not None:
        return record.server.cached_tokens
    return record.cached_tokens if record.prompt_tokens else None
