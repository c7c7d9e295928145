"""Tokens from a renderer, for ``token-producer``.

A renderer is another process, which may be dead, slow or wrong. So what is under way is bounded in
number and bytes, answers in length, and after failures in a row requests are not kept waiting for
it: one a second tries whether it is back.
"""

from asyncio import timeout as time_limit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Final, Protocol, get_args

import structlog

from epp.data_layer.plugins import ScrapeError, ScrapeStatusError
from epp.observability.plugins import PluginCounter
from epp.scheduling import LLMRequest
from epp_plugins.data_producers.media_parts import HAS_MEDIA, MOST_MEDIA
from epp_plugins.data_producers.render_bodies import Question, UnreadableRequestError
from epp_plugins.state_keys import Modality, MultiModalFeature, TokenizedPrompt

_log = structlog.get_logger(__name__)

MOST_IDS: Final = 1024 * 1024
"""Token ids of one prompt: no model is served with more."""
MOST_BYTES: Final = 128 * 1024 * 1024
"""Of all questions under way or waiting."""
MOST_CALLS: Final = 32
"""Questions about text under way at once: more than one renderer works on."""
MOST_MEDIA_CALLS: Final = 8
"""Questions about media under way at once; their answers are long, as they hold the pictures."""
MOST_WAITING: Final = 256
"""Questions of each kind that wait for one of those to end."""
FAILURES_IN_A_ROW: Final = 5
"""After so many the renderer counts as down."""
RETRY_SECONDS: Final = 1.0
"""Time between two questions to a renderer that is down."""
_LOG_SECONDS: Final = 10.0
_LEAST_ANSWER_BYTES: Final = 1024 * 1024
_ANSWER_BYTES_PER_BYTE: Final = 16
"""A byte of a prompt is one token at the most, and an id has ten digits."""
MOST_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Of the longest answer."""
_CLIENT_ERRORS: Final = range(400, 500)
_NOT_THE_CLIENTS: Final = (401, 403, 404, 405, 408, 429)
"""Of the client errors those that tell of the renderer: its key, its paths, its load."""
_MODALITIES: Final = frozenset[str](get_args(Modality))


class RenderError(Exception):
    """No tokens came.

    Args:
        kind: Closed set of causes, a metric label.
        text: What happened.
        is_outage: Whether the renderer is to blame, and not this request.
    """

    def __init__(self, kind: str, text: str, *, is_outage: bool = True) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_outage = is_outage


@dataclass(frozen=True, slots=True)
class Rendered:
    """The tokens of one prompt, as a renderer tells of them."""

    token_ids: Sequence[int]
    """Each of 32 bits."""
    hashes: Mapping[str, Sequence[str]]
    """Of its media, by modality."""
    places: Mapping[str, Sequence[tuple[int, int]]]
    """Where in the tokens those are: offset and length, in the same order."""


class Backend(Protocol):
    """Asks one renderer."""

    where: str
    """For messages."""

    async def ask(
        self, question: Question, *, has_media: bool, max_answer_bytes: int
    ) -> Sequence[Rendered]:
        """Return the tokens of each prompt of ``question``.

        Raises:
            RenderError: The answer makes no sense, or is a refusal.
            ScrapeError: There is none.
            UnreadableRequestError: The request cannot be asked for.
        """

    def close(self) -> None:
        """Close the connections; idempotent."""


class Renderer:
    """Asks one renderer within bounds, and not while it is down.

    Args:
        backend: Asks it.
        timeouts: Seconds that a question about text may take, and one about media.
        outcomes: Counts questions by outcome.
        clock: Seconds.
    """

    def __init__(
        self,
        backend: Backend,
        timeouts: tuple[float, float],
        *,
        outcomes: PluginCounter,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._timeouts = timeouts
        self._outcomes = outcomes
        self._clock = clock
        self._bytes = 0
        self._failures = 0
        self._retry_at = 0.0
        self._log_at = 0.0
        self._is_told = False

    def is_worth_asking(self) -> bool:
        """Return whether to ask now; False, and counted, for most while the renderer is down."""
        if self._failures < FAILURES_IN_A_ROW:
            return True
        now = self._clock()
        if now < self._retry_at:
            self._outcomes.inc("skipped")
            return False
        self._retry_at = now + RETRY_SECONDS
        return True

    async def tokens(self, question: Question, request: LLMRequest) -> TokenizedPrompt:
        """Return the tokens of ``request``.

        Raises:
            RenderError: None came in time, or what came makes no sense; counted and logged already.
        """
        try:
            found = await self._asked(question, request)
        except RenderError as error:
            self._note(error)
            raise
        self._outcomes.inc("ok")
        if self._is_told:
            _log.info(
                "renderer answers again", renderer=self._backend.where, failures=self._failures
            )
        self._failures, self._is_told = 0, False
        return found

    def close(self) -> None:
        """Close the connections."""
        self._backend.close()

    async def _asked(self, question: Question, request: LLMRequest) -> TokenizedPrompt:
        has_media = HAS_MEDIA(request.prompt) is not None
        seconds = self._timeouts[has_media]
        size = len(request.prompt) + len(request.tools) + len(request.template)
        if self._bytes + size > MOST_BYTES:
            text = f"{self._bytes} bytes of questions are under way"
            raise RenderError("busy", text, is_outage=False)
        self._bytes += size
        try:
            async with time_limit(seconds):
                rendered = await self._backend.ask(
                    question,
                    has_media=has_media,
                    max_answer_bytes=_most_answer_bytes(size, has_media),
                )
            return _tokenized(rendered)
        except TimeoutError:
            raise RenderError("timeout", f"no answer within {seconds:g} s") from None
        except UnreadableRequestError as error:
            raise RenderError("unreadable", str(error), is_outage=False) from None
        except ScrapeStatusError as error:
            status = error.status
            mine = status not in _CLIENT_ERRORS or status in _NOT_THE_CLIENTS
            text = f"the renderer answered with status {status}"
            raise RenderError("status" if mine else "refused", text, is_outage=mine) from None
        except ScrapeError as error:
            raise RenderError(error.kind, str(error), is_outage=error.kind != "busy") from None
        finally:
            self._bytes -= size

    def _note(self, error: RenderError) -> None:
        self._outcomes.inc(error.kind)
        now = self._clock()
        if error.is_outage:
            self._failures += 1
            if self._failures == FAILURES_IN_A_ROW:
                self._retry_at = now + RETRY_SECONDS
        if error.is_outage and now >= self._log_at:
            self._log_at = now + _LOG_SECONDS
            self._is_told = True
            _log.warning(
                "renderer failed, requests are scheduled without tokens",
                renderer=self._backend.where,
                kind=error.kind,
                error=str(error),
                failures_in_a_row=self._failures,
                remedy="check its address, and that it is a `vllm launch render` or a vLLM with"
                " --enable-scale-out",
            )


def _most_answer_bytes(prompt_bytes: int, has_media: bool) -> int:
    if has_media:
        return MOST_ANSWER_BYTES
    expected = _LEAST_ANSWER_BYTES + _ANSWER_BYTES_PER_BYTE * prompt_bytes
    return min(expected, MOST_ANSWER_BYTES)


def _tokenized(rendered: Sequence[Rendered]) -> TokenizedPrompt:
    """Return the tokens that an answer tells of, those of several prompts one after the other.

    Raises:
        RenderError: They make no sense.
    """
    ids = [token for each in rendered for token in each.token_ids]
    if not 0 < len(ids) <= MOST_IDS:
        raise RenderError("junk", f"the answer has {len(ids)} token ids")
    features: list[MultiModalFeature] = []
    before = 0
    for each in rendered:
        features += _features(each, before)
        before += len(each.token_ids)
    if len(features) > MOST_MEDIA:
        raise RenderError("junk", f"the answer has {len(features)} media")
    features.sort(key=lambda feature: feature.offset)
    return TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids), tuple(features))


def _features(rendered: Rendered, before: int) -> Iterator[MultiModalFeature]:
    count = len(rendered.token_ids)
    for modality, hashes in rendered.hashes.items():
        places = rendered.places.get(modality, ())
        if modality not in _MODALITIES:
            continue
        if len(places) != len(hashes):
            text = f"the answer has {len(hashes)} hashes and {len(places)} places of {modality}"
            raise RenderError("junk", text)
        for digest, (offset, length) in zip(hashes, places, strict=True):
            if offset < 0 or length < 1 or offset + length > count:
                raise RenderError("junk", f"a {modality} is at {offset} of {count} tokens")
            yield MultiModalFeature(modality, digest, before + offset, length)  # type: ignore[arg-type] # checked above
