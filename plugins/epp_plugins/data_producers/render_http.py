"""A vLLM renderer over HTTP, for mode ``vllm`` of ``token-producer``."""

import ssl
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from epp.data_layer.plugins import HttpCaller, OpenCaller, join_address
from epp_plugins.data_producers.render_bodies import Question
from epp_plugins.data_producers.rendering import (
    MAX_CALLS,
    MAX_IDS,
    MAX_MEDIA_CALLS,
    MAX_WAITING,
    Rendered,
    RenderError,
)

MAX_HASH = 256
"""Maximum characters of the hash of a medium."""

_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _Place(msgspec.Struct, gc=False):
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=1)]


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[Annotated[str, msgspec.Meta(max_length=MAX_HASH)]]] | None = None
    mm_placeholders: dict[str, list[_Place]] | None = None


class _Response(msgspec.Struct, gc=False):
    token_ids: Annotated[list[_TokenId], msgspec.Meta(min_length=1, max_length=MAX_IDS)]
    features: _Features | None = None


_decode_response = msgspec.json.Decoder(_Response | list[_Response]).decode


class HttpRenderer:
    """Client of one renderer over HTTP.

    Args:
        url: Base URL of the renderer.
        open_caller: Creates the HTTP clients.
    """

    def __init__(self, url: str, open_caller: OpenCaller) -> None:
        self.where = url
        self._parts = split_url(url)
        self._open_caller = open_caller
        self._callers: dict[bool, HttpCaller] = {}

    async def ask(
        self, question: Question, *, has_media: bool, max_response_bytes: int
    ) -> list[Rendered]:
        """Return the tokens of each prompt of ``question``."""
        response = await self._caller(has_media).post(
            self._parts.path + question.path,
            await question.body(),
            max_response_bytes=max_response_bytes,
        )
        try:
            found = _decode_response(response)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RenderError("junk", f"the response is invalid: {error}") from None
        return [_rendered(each) for each in (found if isinstance(found, list) else [found])]

    def close(self) -> None:
        """Close the connections."""
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    def _caller(self, has_media: bool) -> HttpCaller:
        caller = self._callers.get(has_media)
        if caller is None:
            # Created at first use: loading the system's certificates takes 25 ms.
            caller = self._callers[has_media] = self._open_caller(
                self._parts.address,
                ssl.create_default_context() if self._parts.is_https else None,
                max_connections=MAX_MEDIA_CALLS if has_media else MAX_CALLS,
                max_waiting=MAX_WAITING,
            )
        return caller


def _rendered(response: _Response) -> Rendered:
    features = response.features or _Features()
    places: Mapping[str, list[_Place]] = features.mm_placeholders or {}
    return Rendered(
        response.token_ids,
        features.mm_hashes or {},
        {name: [(each.offset, each.length) for each in found] for name, found in places.items()},
    )


class RendererUrl(msgspec.Struct, frozen=True):
    """The parts of a renderer's URL."""

    address: str
    """``host:port``."""
    path: str
    """Prefix of the API's paths; "" for none."""
    is_https: bool


def split_url(url: str) -> RendererUrl:
    """Return the parts of ``url``.

    Raises:
        ValueError: ``url`` is not a valid URL of a renderer; the text says why.
    """
    wrong = f"vllm.url: {url!r} is not of the form `http://HOST:PORT`"
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
        raise ValueError(f"{wrong}: write it in ASCII, without spaces")
    is_https = parts.scheme == "https"
    address = join_address(host, port or (443 if is_https else 80))
    return RendererUrl(address, parts.path.rstrip("/"), is_https)
