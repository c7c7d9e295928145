"""Parses HTTP requests with the parser plugin that claims their path.

The end of the path selects the parser (see :mod:`epp.parsing.plugins`). Requests that no parser
reads are scheduled by load alone, with an empty model and prompt: those without a body, those with
an unknown content encoding, and all requests if no parser is configured.

A parser is never disabled, because nothing could replace it. An error other than a
:class:`ParseError` is counted as a bug of the parser.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from epp.parsing.encoding import Decoding, decode_whole, is_known
from epp.parsing.errors import NoParserError, ParseError, ParserFailedError
from epp.parsing.json_density import MIN_VALUE_BYTES, check_values
from epp.parsing.limits import BodyLimits
from epp.parsing.plugins import HttpCall, Parser, ResponseReader
from epp.scheduling import (
    PLUGIN_FAULTS,
    Guard,
    GuardRails,
    LLMRequest,
    Plugin,
    caused,
    without_request,
)

perf_counter: Final = time.perf_counter  # compiled code looks up an imported name at each use

_PATH_HEADERS: Final = (":path", "x-original-path", "x-forwarded-path")
_DEFAULT_PATH: Final = "/v1/completions"
_MAX_KNOWN_PATHS: Final = 256
_DEFAULT_LIMITS: Final = BodyLimits()
_MAX_KNOWN_PATH_CHARS: Final = 256


class ParsedRequest:
    """The result of parsing one request."""

    __slots__ = ("body", "parser", "request")

    def __init__(
        self, request: LLMRequest, body: bytes, parser: Guard[Parser] | None = None
    ) -> None:
        self.request = request
        self.body = body
        """Without its content encoding if a parser with claims read it."""
        self.parser = parser
        """The parser that read it; None if none did."""

    def rewrite(self, model: str) -> bytes | None:
        """Return the body with another model name; None if it names none.

        Raises:
            ParseError: The name cannot be replaced.
            ParserFailedError: The parser has a bug.
        """
        guard = self.parser
        if guard is None:
            return None
        try:
            return guard.plugin.rewrite(self.request, self.body, model)
        except ParseError:
            raise
        except PLUGIN_FAULTS as error:
            raise caused(_failed(guard, error), error) from error


def reader_finder(
    parser: Guard[Parser], request: LLMRequest
) -> Callable[[Mapping[str, str]], ResponseReader | None] | None:
    """Return a function from a response's headers to its reader; None if the parser has none."""
    if type(parser.plugin).response_reader is Parser.response_reader:
        return None
    return partial(_response_reader, parser, request)


def _response_reader(
    parser: Guard[Parser], request: LLMRequest, headers: Mapping[str, str]
) -> ResponseReader | None:
    try:
        return parser.plugin.response_reader(request, headers)
    except PLUGIN_FAULTS as error:
        parser.failed(error)
        return None


class RequestParser:
    """Selects the parser of each request and runs it."""

    def __init__(self, parsers: Sequence[Guard[Parser]]) -> None:
        """Route paths to parsers.

        Args:
            parsers: In order of precedence. A parser without claims gets all other paths and ends
                the list.
        """
        claims: dict[str, Guard[Parser]] = {}
        self._fallback: Guard[Parser] | None = None
        for guard in parsers:
            if not guard.plugin.claims:
                self._fallback = guard
                break
            for claim in guard.plugin.claims:
                claims.setdefault(claim, guard)
        self._is_empty = not parsers
        self._claims = sorted(claims.items(), key=lambda item: len(item[0]), reverse=True)
        self._known: dict[str, tuple[Guard[Parser], str]] = {}

    @classmethod
    def of(cls, plugins: Iterable[Plugin], guards: GuardRails) -> "RequestParser":
        """Return a request parser that uses the parsers among ``plugins``."""
        return cls([guards.watch("Parser", each) for each in plugins if isinstance(each, Parser)])

    def parse(
        self,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        may_lack_model: bool = False,
        limits: BodyLimits = _DEFAULT_LIMITS,
        decoded: bytes | None = None,
    ) -> ParsedRequest:
        """Parse one request.

        Args:
            request_id: Id of the HTTP request.
            headers: By lower-case name, pseudo headers included.
            body: The whole body; b"" for none.
            may_lack_model: Whether the body may omit the model, because it is set elsewhere.
            limits: Limits of the decoded body.
            decoded: The body without its content encoding, if the caller has decoded it.

        Raises:
            ParseError: The request is invalid for its path, or no parser claims the path.
            ParserFailedError: The parser has a bug.
        """
        path = _path(headers)
        if not body or self._is_empty:
            return _unread(request_id, path, headers, body)
        path = path or _DEFAULT_PATH
        guard, claim = self._known.get(path) or self._parser_of(path)
        if claim and "content-encoding" in headers:
            if not is_known(headers):
                return _unread(request_id, path, headers, body)
            body = decode_whole(headers, body, limits) if decoded is None else decoded
        # The test of check_values, repeated here: the call would cost every request 0.2 us.
        if claim and len(body) > limits.max_json_values * MIN_VALUE_BYTES:
            check_values(body, limits.max_json_values)
        call = HttpCall(request_id, path, headers, body, claim, may_lack_model)
        began = perf_counter()
        try:
            plugin: Any = guard.plugin  # which may return anything
            request = plugin.parse(call)
            if not isinstance(request, LLMRequest):
                raise TypeError(f"it returned {request!r:.99} and no LLMRequest")
        except ParseError:
            guard.passed(perf_counter() - began)
            raise
        except PLUGIN_FAULTS as error:
            raise caused(_failed(guard, error, perf_counter() - began), error) from error
        guard.passed(perf_counter() - began)
        return ParsedRequest(request, body, guard)

    def decoding(
        self, headers: Mapping[str, str], body: bytes | memoryview, limits: BodyLimits
    ) -> Decoding | None:
        """Return the decoding of ``body``; None if it need not be decoded.

        Raises:
            NoParserError: No parser claims the path.
        """
        if not body or self._is_empty or not is_known(headers):
            return None
        path = _path(headers) or _DEFAULT_PATH
        _, claim = self._known.get(path) or self._parser_of(path)
        return Decoding.of(headers, body, limits) if claim else None

    def _parser_of(self, path: str) -> tuple[Guard[Parser], str]:
        bare_path = path.partition("?")[0]
        found = self._known.get(bare_path)
        if found is not None:
            return found
        found = next(
            ((guard, claim) for claim, guard in self._claims if bare_path.endswith(claim)), None
        )
        if found is None:
            if self._fallback is None:
                raise NoParserError(f"no parser registered matching path suffix for: {bare_path}")
            found = self._fallback, ""
        # Clients choose paths, so the table is bounded.
        if len(self._known) < _MAX_KNOWN_PATHS and len(bare_path) <= _MAX_KNOWN_PATH_CHARS:
            self._known[bare_path] = found
        return found


def _path(headers: Mapping[str, str]) -> str:
    return headers.get(":path") or next(filter(None, map(headers.get, _PATH_HEADERS)), "")


def _unread(request_id: str, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest:
    request = LLMRequest(
        request_id=request_id,
        target_model="",
        path=path,
        headers=headers,
        body_bytes=len(body),
    )
    return ParsedRequest(request, body)


def _failed(
    guard: Guard[Parser], error: BaseException, seconds: float | None = None
) -> ParserFailedError:
    guard.failed(error, seconds)
    return ParserFailedError(f"parser {guard.plugin.name!r} failed: {without_request(error)}")
