"""Converts a model server's tokens to the estimated tokens that a prefix index counts.

The index counts what it has hashed: whole blocks of estimated tokens, four bytes each, of which the
last one of a prompt may be partial. A model server counts real tokens. English prose has about 5
bytes in a token, source code 3, JSON with escapes 6 and more, so a cache of 100 000 tokens holds
anything between 50 000 and 200 000 tokens of the index. An index that evicts a prefix
before the server does routes prompts away from the server that has them cached; an index that
evicts slightly too late costs less.

The scale therefore starts at twice the estimate and is then learned from the better of two sources:

1. The usage in the responses, if they pass through this process: exact, per request.
2. The server's own counters of prompt tokens and of prompts (vLLM: ``vllm:prompt_tokens_total`` and
   the count of ``vllm:time_to_first_token_seconds``), whose growth is compared with what was sent
   there: the mean length of a prompt in the index, divided by its mean length on the server. If the
   server counts clearly more prompts than were sent from here, it has other clients, whose prompts
   may differ from ours: then the scale never drops below its initial value.

A margin is added to a learned scale. Both sources decay: their sums are halved after every million
tokens.
"""

from typing import Final

from epp.scheduling import NEVER_SCRAPED, EndpointMetrics

GENEROUS: Final = 2.0
"""The initial scale, before anything is learned."""
MARGIN: Final = 1.25
"""Factor on a learned scale, because prompts that stay cached may be denser than the mean."""
LOWEST: Final = 0.25
HIGHEST: Final = 8.0
"""Bounds of a scale, whatever a server reports."""
ENOUGH_TOKENS: Final = 16_384
"""Real tokens that a source must have counted before its scale is used."""
ENOUGH_PROMPTS: Final = 16
HALVED_TOKENS: Final = 1 << 20
OTHERS: Final = 1.1
"""Prompts counted by a server for each one sent from here, above which it has other clients."""


class TokenScale:
    """The scale of one endpoint: multiply tokens of its cache by :attr:`factor`."""

    __slots__ = (
        "_answered_index_tokens",
        "_answered_tokens",
        "_from_usage",
        "_page",
        "_prompts_at_start",
        "_sent_index_tokens",
        "_sent_prompts",
        "_tokens_at_start",
        "factor",
    )

    def __init__(self) -> None:
        self.factor = GENEROUS
        """Tokens of the index for one real token, margin included."""
        self._from_usage = False
        self._answered_index_tokens = 0.0
        self._answered_tokens = 0.0
        self._page = NEVER_SCRAPED
        self._tokens_at_start = 0.0
        self._prompts_at_start = 0.0
        self._sent_index_tokens = 0.0
        self._sent_prompts = 0.0

    def sent(self, index_tokens: int, page: EndpointMetrics) -> None:
        """Count a prompt sent to the endpoint whose latest metrics page is ``page``."""
        if page is not self._page and not self._from_usage:
            self._look(page)
        self._sent_index_tokens += index_tokens
        self._sent_prompts += 1

    def answered(self, index_tokens: int, tokens: int) -> None:
        """Learn from a response that a prompt of ``index_tokens`` has ``tokens`` real tokens."""
        self._answered_index_tokens += index_tokens
        self._answered_tokens += tokens
        if self._answered_tokens >= ENOUGH_TOKENS:
            self._from_usage = True
            self._learn(self._answered_index_tokens / self._answered_tokens)
            if self._answered_tokens >= HALVED_TOKENS:
                self._answered_index_tokens /= 2
                self._answered_tokens /= 2

    def _look(self, page: EndpointMetrics) -> None:
        """Compare the server's counters with the prompts that were sent to it."""
        before, self._page = self._page, page
        if (
            not before.prompts
            or page.prompt_tokens < before.prompt_tokens
            or page.prompts < before.prompts
        ):  # the first page with prompts, or the server was restarted
            self._tokens_at_start = float(page.prompt_tokens)
            self._prompts_at_start = float(page.prompts)
            self._sent_index_tokens = self._sent_prompts = 0.0
            return
        tokens = page.prompt_tokens - self._tokens_at_start
        prompts = page.prompts - self._prompts_at_start
        if tokens < ENOUGH_TOKENS or prompts < ENOUGH_PROMPTS or not self._sent_prompts:
            return
        scale = (self._sent_index_tokens / self._sent_prompts) / (tokens / prompts)
        if prompts > self._sent_prompts * OTHERS:
            scale = max(scale, GENEROUS / MARGIN)
        self._learn(scale)
        if tokens >= HALVED_TOKENS:
            self._tokens_at_start += tokens / 2
            self._prompts_at_start += prompts / 2
            self._sent_index_tokens /= 2
            self._sent_prompts /= 2

    def _learn(self, scale: float) -> None:
        self.factor = min(HIGHEST, max(LOWEST, scale * MARGIN))
