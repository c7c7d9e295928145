"""Tokens from a vLLM renderer, for the mode ``vllm`` of ``token-producer``.

A renderer is another process, which may be dead, slow or wrong. So what is under way is bounded in
number and bytes, answers in length, and after failures in a row requests are not kept waiting for
it: one a second tries whether it is back.
"""

import ssl
from asyncio import timeout as time_limit
from collections.abc import Callable, Mapping
from struct import pack
from typing import Annotated, Final, get_args
from urllib.parse import urlsplit

import msgspec
import structlog

from epp.data_layer.plugins import (
    HttpCaller,
    OpenCaller,
    ScrapeError,
    ScrapeStatusError,
    join_address,
)
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
_MOST_ANSWER_BYTES: Final = 32 * 1024 * 1024
_MOST_HASH: Final = 256
_CLIENT_ERRORS: Final = range(400, 500)
_NOT_THE_CLIENTS: Final = (401, 403, 404, 405, 408, 429)
"""Of the client errors those that tell of the renderer: its key, its paths, its load."""
_MODALITIES: Final = frozenset[str](get_args(Modality))

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Place(msgspec.Struct, gc=False):
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1)]


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[Annotated[str, msgspec.Meta(max_length=_MOST_HASH)]]] | None = None
    mm_placeholders: dict[str, list[_Place]] | None = None


class _Rendered(msgspec.Struct, gc=False):
    token_ids: Annotated[list[_TokenId], msgspec.Meta(min_length=1, max_length=MOST_IDS)]
    features: _Features | None = None


_decode_answer = msgspec.json.Decoder(_Rendered | list[_Rendered]).decode


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


class Renderer:
    """One renderer, asked over HTTP.

    Args:
        url: Its base URL.
        timeouts: Seconds that a question about text may take, and one about media.
        open_caller: Makes the client.
        outcomes: Counts questions by outcome.
        clock: Seconds.
    """

    def __init__(
        self,
        url: str,
        timeouts: tuple[float, float],
        *,
        open_caller: OpenCaller,
        outcomes: PluginCounter,
        clock: Callable[[], float],
    ) -> None:
        self._url = url
        parts = split_url(url)
        self._base = parts.path
        self._timeouts = timeouts
        self._open_caller = open_caller
        self._address = parts.address
        self._is_https = parts.is_https
        self._outcomes = outcomes
        self._clock = clock
        self._callers: dict[bool, HttpCaller] = {}
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
            _log.info("renderer answers again", url=self._url, failures=self._failures)
        self._failures, self._is_told = 0, False
        return found

    def close(self) -> None:
        """Close the connections."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

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
                body = await question.body()
                answer = await self._caller(has_media).post(
                    self._base + question.path,
                    body,
                    max_answer_bytes=_most_answer_bytes(size, has_media),
                )
            return _read(answer)
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

    def _caller(self, has_media: bool) -> HttpCaller:
        caller = self._callers.get(has_media)
        if caller is None:
            # Made when first used: to load the system's certificates takes 25 ms.
            caller = self._callers[has_media] = self._open_caller(
                self._address,
                ssl.create_default_context() if self._is_https else None,
                max_connections=MOST_MEDIA_CALLS if has_media else MOST_CALLS,
                max_waiting=MOST_WAITING,
            )
        return caller

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
                url=self._url,
                kind=error.kind,
                error=str(error),
                failures_in_a_row=self._failures,
                remedy="check `vllm.url` and that it is a `vllm launch render`, or a vLLM with"
                " --enable-scale-out",
            )


class RendererUrl(msgspec.Struct, frozen=True):
    """The parts of a renderer's URL."""

    address: str
    """``host:port``."""
    path: str
    """Before the API's paths; "" for none."""
    is_https: bool


def split_url(url: str) -> RendererUrl:
    """Return the parts of ``url``.

    Raises:
        ValueError: It is no URL of a renderer; the text says why.
    """
    wrong = f"vllm.url: {url!r} is no `http://HOST:PORT`"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{wrong}: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError(wrong)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{wrong}: user, query and fragment are not sent; remove them")
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError(f"{wrong}: write it in ASCII, without blanks")
    is_https = parts.scheme == "https"
    address = join_address(host, port or (443 if is_https else 80))
    return RendererUrl(address, parts.path.rstrip("/"), is_https)


def _most_answer_bytes(prompt_bytes: int, has_media: bool) -> int:
    if has_media:
        return _MOST_ANSWER_BYTES
    expected = _LEAST_ANSWER_BYTES + _ANSWER_BYTES_PER_BYTE * prompt_bytes
    return min(expected, _MOST_ANSWER_BYTES)


def _read(answer: bytes) -> TokenizedPrompt:
    """Return the tokens that an answer tells of, those of several prompts one after the other."""
    try:
        found = _decode_answer(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RenderError("junk", f"the answer makes no sense: {error}") from None
    rendered = found if isinstance(found, list) else [found]
    ids = [token for each in rendered for token in each.token_ids]
    if not 0 < len(ids) <= MOST_IDS:
        raise RenderError("junk", f"the answer has {len(ids)} token ids")
    features: list[MultiModalFeature] = []
    before = 0
    for each in rendered:
        if each.features is not None:
            features += _features(each.features, before, len(each.token_ids))
        before += len(each.token_ids)
    if len(features) > MOST_MEDIA:
        raise RenderError("junk", f"the answer has {len(features)} media")
    features.sort(key=lambda feature: feature.offset)
    return TokenizedPrompt(pack(f"<{len(ids)}I", *ids), len(ids), tuple(features))


def _features(features: _Features, before: int, count: int) -> list[MultiModalFeature]:
    places: Mapping[str, list[_Place]] = features.mm_placeholders or {}
    found: list[MultiModalFeature] = []
    for modality, hashes in (features.mm_hashes or {}).items():
        spans = places.get(modality, [])
        if modality not in _MODALITIES:
            continue
        if len(spans) != len(hashes):
            text = f"the answer has {len(hashes)} hashes and {len(spans)} places of {modality}"
            raise RenderError("junk", text)
        for digest, span in zip(hashes, spans, strict=True):
            if span.offset + span.length > count:
                raise RenderError("junk", f"a {modality} ends behind the last of {count} tokens")
            found.append(
                MultiModalFeature(modality, digest, before + span.offset, span.length)  # type: ignore[arg-type] # checked above
            )
    return found
