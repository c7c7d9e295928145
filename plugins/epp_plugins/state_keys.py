"""Values that plugins share through the cycle state: one typed key each.

A consumer lists the keys it needs in the class attribute ``reads``, a producer its own in ``reads``
and ``writes``; a producer with the key in ``default_for`` is made when nobody configured one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from epp.scheduling import StateKey


# The records are not frozen: one of each is made per request, and frozen ones take 0.4 us more.
@dataclass(slots=True)
class TokenizedPrompt:
    """One prompt as an array of 32-bit little-endian token ids."""

    data: bytes
    """Four bytes per token; the last token may be short and then ends in implied zeros."""
    count: int
    """Tokens in ``data``."""


@dataclass(slots=True)
class PrefixMatches:
    """How much of one prompt each endpoint already holds."""

    blocks: Mapping[str, int]
    """Prompt blocks held, by endpoint name; an absent name holds none."""
    total_blocks: int
    """Blocks in the prompt."""
    block_size: int
    """Tokens per block."""


TOKENIZED_PROMPT = StateKey[TokenizedPrompt]("tokenized-prompt")
PREFIX_MATCHES = StateKey[PrefixMatches]("prefix-matches")

_DEFAULT_MATCH_PRODUCER = "approx-prefix-cache-producer"


def prefix_matches_of(producer: str) -> StateKey[PrefixMatches]:
    """Return the key of one producer's own matches; "" stands for the default producer."""
    own: StateKey[PrefixMatches] = StateKey(f"prefix-matches/{producer}")
    return PREFIX_MATCHES if producer in ("", _DEFAULT_MATCH_PRODUCER) else own
