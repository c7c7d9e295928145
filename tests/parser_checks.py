"""Checks that every request parser must pass, whatever its API."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from epp.parsing.plugins import HttpCall, ParseError, Parser, ResponseReader, Usage
from epp.scheduling import LLMRequest

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def odd_objects(names: Iterable[str]) -> st.SearchStrategy[bytes]:
    """JSON objects that have some of the fields ``names``, with values of any type."""
    fields = st.dictionaries(st.sampled_from(sorted(names)), JSON_VALUES)
    return fields.map(lambda value: json.dumps(value).encode())


def make_call(
    parser: Parser,
    body: bytes,
    *,
    path: str = "",
    headers: Mapping[str, str] | None = None,
    may_lack_model: bool = False,
) -> HttpCall:
    """A call as the director makes it; by default to the parser's first claim."""
    path = path or parser.claims[0]
    bare = path.partition("?")[0]
    claim = max((c for c in parser.claims if bare.endswith(c)), key=len)
    return HttpCall("r-1", path, headers or {}, body, claim, may_lack_model)


def request_or_refusal(parser: Parser, body: bytes, *, path: str = "") -> LLMRequest | None:
    """The request that ``body`` is; None if it is refused in the way that clients are told of."""
    try:
        request = parser.parse(make_call(parser, body, path=path, may_lack_model=True))
    except ParseError:
        return None
    assert isinstance(request.prompt, bytes)
    assert isinstance(request.tools, bytes)
    assert isinstance(request.cache_salt, str)
    assert isinstance(request.stream, bool)
    assert request.max_output_tokens is None or type(request.max_output_tokens) is int
    assert request.body_bytes == len(body)
    return request


def usage_of(reader: ResponseReader | None, *pieces: bytes) -> Usage | None:
    """What ``reader`` finds in a response that comes in ``pieces``."""
    assert reader is not None
    for piece in pieces:
        reader.feed(piece)
    return reader.usage()


def usages_by_cut(
    reader: Callable[[], ResponseReader | None], response: bytes
) -> set[Usage | None]:
    """What is found in ``response`` cut in two at every place, and in its single bytes."""
    found = {usage_of(reader(), response[:cut], response[cut:]) for cut in range(len(response) + 1)}
    return found | {usage_of(reader(), *(response[at : at + 1] for at in range(len(response))))}
