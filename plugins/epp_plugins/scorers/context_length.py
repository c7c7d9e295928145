"""``context-length-aware``: prefers, or keeps only, endpoints meant for prompts of this length.

A label of the endpoint, in the form ``min-max``, gives its range of prompt lengths in tokens, both
ends included. For a prompt of ``length`` tokens, with ``width = max - min``::

    in range        0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max - length) / width)
                    1.0 if width is 0
    out of range    0.3 / (1 + distance / 1000)      # to the nearer end
    no label        0.5
    bad label       0.0

So narrower ranges score higher, then ranges with more headroom, and an endpoint out of range never
scores more than one in range. As a filter it keeps endpoints in range and those without the label
if ``enableFiltering`` is true; otherwise it keeps all. A label is bad unless it is two integers,
the smaller one first. A request without a prompt has length 0.

Reads:  ``TOKENIZED_PROMPT``, written by ``token-producer``; ``endpoint.labels``.
Example::

    plugins:
      - type: context-length-aware
        parameters: {enableFiltering: true}
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest, Scorer, StateKey
from epp_plugins.state_keys import TOKENIZED_PROMPT

NO_LABEL: Final = 0.5
BAD_LABEL: Final = 0.0
OUT_OF_RANGE: Final = 0.3
"""Maximum score of an endpoint out of range, and minimum of one in range."""

_RANGE = re.compile(r"\s*\+?([0-9]{1,19})\s*-\s*\+?([0-9]{1,19})\s*", re.ASCII)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``context-length-aware``."""

    label: str = "llm-d.ai/context-length-range"
    """Label with the range, such as ``0-8192``."""
    enable_filtering: bool = False
    """Whether the filter removes endpoints out of range and those with a bad label."""

    def __post_init__(self) -> None:
        if not self.label:
            raise ValueError("label is empty; leave it out for llm-d.ai/context-length-range")


class _Range(NamedTuple):
    least: int
    most: int


class ContextLengthAware(Filter, Scorer):
    """Compares the length of a prompt with the range of an endpoint."""

    type: ClassVar[str] = "context-length-aware"
    reads: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._label = params.label
        self._filters = params.enable_filtering

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        if not self._filters:
            return list(endpoints)
        label, length = self._label, _length(state)
        # Many endpoints have the same label, so each value is parsed once.
        fits: dict[str | None, bool] = {None: True}
        kept = []
        for endpoint in endpoints:
            text = endpoint.labels.get(label)
            fit = fits.get(text)
            if fit is None:
                wanted = _parse(text)
                fit = fits[text] = wanted is not None and wanted.least <= length <= wanted.most
            if fit:
                kept.append(endpoint)
        return kept

    def score(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[float]:
        label, length = self._label, _length(state)
        known: dict[str | None, float] = {None: NO_LABEL}
        scores = []
        for endpoint in endpoints:
            text = endpoint.labels.get(label)
            score = known.get(text)
            if score is None:
                score = known[text] = _score(length, _parse(text))
            scores.append(score)
        return scores


def _length(state: CycleState) -> int:
    prompt = state.read(TOKENIZED_PROMPT)
    return 0 if prompt is None else prompt.count


@lru_cache(maxsize=4096)  # all labels of a pool; a smaller cache would parse all of them each time
def _parse(text: str | None) -> _Range | None:
    """Return the range of a label, None if it is bad."""
    found = _RANGE.fullmatch(text or "")
    if found is None:
        return None
    least, most = int(found[1]), int(found[2])
    return _Range(least, most) if least <= most else None


def _score(length: int, wanted: _Range | None) -> float:
    if wanted is None:
        return BAD_LABEL
    least, most = wanted
    if least <= length <= most:
        width = most - least
        if width == 0:
            return 1.0
        tightness = 1.0 / (1.0 + width / 10_000)
        headroom = (most - length) / width
        return OUT_OF_RANGE + (1.0 - OUT_OF_RANGE) * (0.7 * tightness + 0.3 * headroom)
    distance = length - most if length > most else least - length
    return OUT_OF_RANGE / (1.0 + distance / 1000)
