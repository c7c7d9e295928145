"""Tokens from a renderer, for ``token-producer``.

A renderer is another process, which may be down, slow or wrong. So calls in flight are bounded in
number and bytes, and responses in length. After several failures in a row requests no longer wait
for the renderer: one request per second probes whether it is back.
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
from epp_plugins.data_producers.media_parts import HAS_MEDIA
from epp_plugins.data_producers.render_bodies import Question, UnreadableRequestError
from epp_plugins.state_keys import Modality, MultiModalFeature, TokenizedPrompt

_log = structlog.get_logger(__name__)

MAX_IDS: Final = 1024 * 1024
"""Maximum token ids of one prompt: no served model has a longer context."""
MAX_BYTES: Final = 128 * 1024 * 1024
"""Maximum bytes of all calls in flight or waiting."""
MAX_CALLS: Final = 32
"""Maximum text calls in flight: more than one renderer processes at once."""
_MAX_MEDIA: Final = 1024
"""Maximum media in one response."""
MAX_MEDIA_CALLS: Final = 8
"""Maximum media calls in flight; their responses are long, as they contain the images."""
MAX_WAITING: Final = 256
"""Maximum calls of each kind that wait for one in flight to end."""
FAILURES_IN_A_ROW: Final = 5
"""After this many failures the renderer counts as down."""
RETRY_SECONDS: Final = 1.0
"""Time between two probes of a renderer that is down."""
_LOG_SECONDS: Final = 10.0
_LEAST_RESPONSE_BYTES: Final = 1024 * 1024
_RESPONSE_BYTES_PER_BYTE: Final = 16
"""A byte of a prompt is at most one token, and an id has up to ten digits."""
MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
"""Maximum length of a response."""
_CLIENT_ERRORS: Final = range(400, 500)
_NOT_THE_CLIENTS: Final = (401, 403, 404, 405, 408, 429)
"""Client errors that count as an outage: they depend on the renderer's key, paths or load."""
_MODALITIES: Final = frozenset[str](get_args(Modality))


class RenderError(Exception):
    """The renderer returned no usable tokens.

    Args:
        kind: Cause, out of a closed set; the value of a metric label.
        text: Description of the error.
        is_outage: Whether the renderer failed; False if this request caused the error.
    """

    def __init__(self, kind: str, text: str, *, is_outage: bool = True) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_outage = is_outage


@dataclass(frozen=True, slots=True)
class Rendered:
    """The tokens of one prompt, as a renderer returned them."""

    token_ids: Sequence[int]
    """Each fits in 32 bits."""
    hashes: Mapping[str, Sequence[str]]
    """Hashes of its media, by modality."""
    places: Mapping[str, Sequence[tuple[int, int]]]
    """Offset and length of each medium in the tokens, in the order of the hashes."""


class Backend(Protocol):
    """Calls one renderer."""

    where: str
    """The renderer's address, for messages."""

    async def ask(
        self, question: Question, *, has_media: bool, max_response_bytes: int
    ) -> Sequence[Rendered]:
        """Return the tokens of each prompt of ``question``.

        Raises:
            RenderError: The response is invalid, or a refusal.
            ScrapeError: There is no response.
            UnreadableRequestError: The request cannot be converted to a call.
        """

    def close(self) -> None:
        """Close the connections; idempotent."""


class Renderer:
    """Calls one renderer within limits, and skips it while it is down.

    Args:
        backend: Calls the renderer.
        timeouts: Time limits of a text call and of a media call, in seconds.
        outcomes: Counts calls by outcome.
        clock: Returns seconds.
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
        self._is_failure_logged = False

    def is_worth_asking(self) -> bool:
        """Return whether to call now; while the renderer is down, most requests are skipped."""
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
            RenderError: No valid response came in time; already counted and logged.
        """
        try:
            found = await self._asked(question, request)
        except RenderError as error:
            self._note(error)
            raise
        self._outcomes.inc("ok")
        if self._is_failure_logged:
            _log.info("renderer recovered", renderer=self._backend.where, failures=self._failures)
        self._failures, self._is_failure_logged = 0, False
        return found

    def state(self) -> Mapping[str, object]:
        """Return the bytes of the calls in flight and the failures in a row."""
        return {
            "is_down": self._failures >= FAILURES_IN_A_ROW,
            "failures_in_a_row": self._failures,
            "bytes_in_flight": self._bytes,
            "max_bytes_in_flight": MAX_BYTES,
        }

    def close(self) -> None:
        """Close the connections."""
        self._backend.close()

    async def _asked(self, question: Question, request: LLMRequest) -> TokenizedPrompt:
        has_media = HAS_MEDIA(request.prompt) is not None
        seconds = self._timeouts[has_media]
        size = len(request.prompt) + len(request.tools) + len(request.template)
        if self._bytes + size > MAX_BYTES:
            text = (
                f"this prompt of {size} bytes and the {self._bytes} bytes of the calls in flight"
                f" exceed the limit of {MAX_BYTES} bytes"
            )
            raise RenderError("busy", text, is_outage=False)
        self._bytes += size
        try:
            async with time_limit(seconds):
                rendered = await self._backend.ask(
                    question,
                    has_media=has_media,
                    max_response_bytes=_most_response_bytes(size, has_media),
                )
            return _tokenized(rendered)
        except TimeoutError:
            raise RenderError("timeout", f"no response within {seconds:g} s") from None
        except UnreadableRequestError as error:
            raise RenderError("unreadable", str(error), is_outage=False) from None
        except ScrapeStatusError as error:
            status = error.status
            mine = status not in _CLIENT_ERRORS or status in _NOT_THE_CLIENTS
            text = f"the renderer responded with status {status}"
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
            self._is_failure_logged = True
            _log.warning(
                "renderer failed, requests are scheduled without tokens",
                renderer=self._backend.where,
                kind=error.kind,
                error=str(error),
                failures_in_a_row=self._failures,
                remedy="check its address, and that it is a `vllm launch render` or a vLLM with"
                " --enable-scale-out",
            )


def _most_response_bytes(prompt_bytes: int, has_media: bool) -> int:
    if has_media:
        return MAX_RESPONSE_BYTES
    expected = _LEAST_RESPONSE_BYTES + _RESPONSE_BYTES_PER_BYTE * prompt_bytes
    return min(expected, MAX_RESPONSE_BYTES)


def _tokenized(rendered: Sequence[Rendered]) -> TokenizedPrompt:
    """Return the tokens of a response, those of several prompts concatenated.

    Raises:
        RenderError: They are invalid.
    """
    ids = [token for each in rendered for token in each.token_ids]
    if not 0 < len(ids) <= MAX_IDS:
        text = f"the response has {len(ids)} token ids, expected 1 to {MAX_IDS}"
        raise RenderError("junk", text)
    features: list[MultiModalFeature] = []
    before = 0
    for each in rendered:
        features += _features(each, before)
        before += len(each.token_ids)
    if len(features) > _MAX_MEDIA:
        text = f"the response describes {len(features)} media, the limit is {_MAX_MEDIA}"
        raise RenderError("junk", text)
    features.sort(key=lambda feature: feature.offset)
    return TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids), tuple(features))


def _features(rendered: Rendered, before: int) -> Iterator[MultiModalFeature]:
    count = len(rendered.token_ids)
    for modality, hashes in rendered.hashes.items():
        places = rendered.places.get(modality, ())
        if modality not in _MODALITIES:
            continue
        if len(places) != len(hashes):
            text = (
                f"the response has {len(hashes)} hashes and {len(places)} placeholders of modality"
                f" {modality}, expected one placeholder for each hash"
            )
            raise RenderError("junk", text)
        for digest, (offset, length) in zip(hashes, places, strict=True):
            if offset < 0 or length < 1 or offset + length > count:
                text = (
                    f"the response has {count} token ids, and a placeholder of modality {modality}"
                    f" at offset {offset} with length {length}, which does not lie within them"
                )
                raise RenderError("junk", text)
            yield MultiModalFeature(modality, digest, before + offset, length)  # type: ignore[arg-type] # checked above
