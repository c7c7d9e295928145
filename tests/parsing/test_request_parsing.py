"""The selection of a parser, and its failures."""

import gzip
import sys
from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from epp.observability import Metrics, PluginWatch
from epp.parsing import NoParserError, ParseError, ParserFailedError, RequestParser, reader_finder
from epp.parsing.plugins import HttpCall, Parser, ResponseReader
from epp.scheduling import GuardRails, LLMRequest


class Stub(Parser):
    """Returns its name as the model, or does what the test sets."""

    type: ClassVar[str] = "stub-parser"

    def __init__(
        self, name: str, *claims: str, act: Callable[[HttpCall], object] = lambda _: None
    ) -> None:
        self.name = name
        self.claims = claims  # type: ignore[misc]  # an instance's own, for these tests
        self.act = act
        self.calls: list[HttpCall] = []

    def parse(self, call: HttpCall) -> LLMRequest:
        self.calls.append(call)
        self.act(call)
        return LLMRequest(call.request_id, target_model=self.name, headers=call.headers)


class Answering(Stub):
    """Fails to read a response and to rewrite a body."""

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        raise ValueError(model)

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        raise ValueError(headers)


METRICS = Metrics()
FIRST, SECOND, REST = "/completions", "/chat/completions", ""
BODY = b"body"


def make_parser(*parsers: Parser, metrics: Metrics | None = None) -> RequestParser:
    watch = PluginWatch(metrics or METRICS)
    return RequestParser.of(parsers, GuardRails(observer=watch, disable_after=1))


def asked(path: str, *parsers: Parser) -> str:
    parsed = make_parser(*parsers).parse("r", {":path": path}, BODY)
    return parsed.request.target_model


@pytest.mark.parametrize(
    ("path", "who", "claim"),
    [
        pytest.param("/v1/completions", "first", FIRST, id="a claim"),
        pytest.param("/v1/chat/completions", "second", SECOND, id="the longest claim"),
        pytest.param("/completions", "first", FIRST, id="the whole path"),
        pytest.param("/a/b/chat/completions?x=/completions", "second", SECOND, id="a query"),
        pytest.param("/v1/completions/", "rest", REST, id="a slash behind"),
        pytest.param("/v1/xcompletions", "rest", REST, id="only a part of the last step"),
        pytest.param("/v1/models?x=/completions", "rest", REST, id="a claim in the query"),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=["shorter first", "longer first"])
def test_the_longest_claim_decides(path: str, who: str, claim: str, order: tuple[int, ...]) -> None:
    parsers = Stub("first", FIRST), Stub("second", SECOND), Stub("rest")
    request_parser = make_parser(*(parsers[place] for place in order))
    for _ in range(2):  # the second one finds the path known
        parsed = request_parser.parse("r-1", {":path": path}, BODY, may_lack_model=True)
        assert parsed.request.target_model == who
        assert parsed.parser is not None
        assert parsed.body is BODY
    asked_one = next(each for each in parsers if each.name == who)
    assert asked_one.calls == [HttpCall("r-1", path, {":path": path}, BODY, claim, True)] * 2


def test_of_two_with_the_same_claim_the_first_is_asked() -> None:
    assert asked("/v1/completions", Stub("a", "/completions"), Stub("b", "/completions")) == "a"


def test_a_parser_after_the_one_of_everything_is_never_asked() -> None:
    assert asked("/v1/completions", Stub("rest"), Stub("late", "/completions")) == "rest"


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({":path": "/a", "x-original-path": "/b", "x-forwarded-path": "/c"}, "/a"),
        ({":path": "", "x-original-path": "/b", "x-forwarded-path": "/c"}, "/b"),
        ({"x-forwarded-path": "/c"}, "/c"),
        ({}, "/v1/completions"),
    ],
    ids=["the path", "the original one", "the forwarded one", "none"],
)
def test_the_path_is_the_first_that_is_given(headers: dict[str, str], path: str) -> None:
    parser = Stub("rest")
    make_parser(parser).parse("r", headers, BODY)
    assert [call.path for call in parser.calls] == [path]


def test_a_path_that_nobody_reads_is_refused() -> None:
    text = "^no parser registered matching path suffix for: /v1/models$"
    with pytest.raises(NoParserError, match=text):
        asked("/v1/models?a=b", Stub("first", FIRST))


def test_many_paths_are_not_all_kept() -> None:
    request_parser = make_parser(Stub("rest"))
    for number in range(1000):
        request_parser.parse("r", {":path": f"/{number}"}, BODY)
    assert len(request_parser._known) == 256


def test_a_long_path_is_not_kept() -> None:
    request_parser = make_parser(Stub("rest"))
    request_parser.parse("r", {":path": "/" + "x" * 255}, BODY)
    request_parser.parse("r", {":path": "/" + "x" * 256}, BODY)
    assert [*map(len, request_parser._known)] == [256]


@pytest.mark.parametrize(
    ("body", "parsers"),
    [
        pytest.param(b"", [Stub("first", FIRST)], id="no body"),
        pytest.param(b"", [Stub("other", "/other")], id="no body and no parser for the path"),
        pytest.param(b"x", [], id="no parser at all"),
    ],
)
def test_what_no_parser_looks_at_is_scheduled_on_load_alone(
    body: bytes, parsers: list[Parser]
) -> None:
    headers = {":path": "/v1/completions"}
    parsed = make_parser(*parsers).parse("r-1", headers, body)
    request = parsed.request
    assert (request.request_id, request.path) == ("r-1", "/v1/completions")
    assert (request.model, request.target_model, request.prompt) == ("", "", b"")
    assert (request.headers, request.body_bytes) == (headers, len(body))
    assert (parsed.parser, parsed.body) == (None, body)
    assert parsed.rewrite("other") is None


# --- content encoding -------------------------------------------------------------------------


def test_a_parser_gets_the_body_without_its_encoding() -> None:
    parser = Stub("first", FIRST)
    headers = {":path": "/completions", "content-encoding": "gzip"}
    parsed = make_parser(parser).parse("r", headers, gzip.compress(BODY))
    assert (parsed.body, parser.calls[0].body) == (BODY, BODY)


def test_a_body_of_another_encoding_is_not_looked_at() -> None:
    parser = Stub("first", FIRST)
    headers = {":path": "/completions", "content-encoding": "br"}
    parsed = make_parser(parser).parse("r", headers, BODY)
    assert (parser.calls, parsed.parser, parsed.body) == ([], None, BODY)


def test_a_parser_of_everything_gets_the_body_as_it_came() -> None:
    parser, body = Stub("rest"), gzip.compress(BODY)
    headers = {":path": "/x", "content-encoding": "gzip"}
    assert make_parser(parser).parse("r", headers, body).body is body
    assert parser.calls[0].body is body


# --- faults -----------------------------------------------------------------------------------


def refuse(_: HttpCall) -> None:
    raise ParseError("no")


def fail(_: HttpCall) -> None:
    raise KeyError("model")


def leave(_: HttpCall) -> None:
    sys.exit(1)


def errors(metrics: Metrics) -> float:
    labels = {"extension_point": "Parser", "plugin_type": "stub-parser", "plugin_name": "p"}
    value = metrics.registry.get_sample_value("llm_d_epp_plugin_failures_total", labels)
    return value or 0.0


def test_a_refusal_is_no_fault_of_the_parser() -> None:
    metrics = Metrics()
    request_parser = make_parser(Stub("p", act=refuse), metrics=metrics)
    with pytest.raises(ParseError, match=r"^no$"):
        request_parser.parse("r", {}, BODY)
    assert errors(metrics) == 0


@pytest.mark.parametrize(
    ("act", "text"),
    [(fail, "KeyError"), (leave, "SystemExit")],
    ids=["raises", "exits"],
)
def test_a_parser_that_fails_is_counted_and_asked_again(
    act: Callable[[HttpCall], object], text: str
) -> None:
    metrics = Metrics()
    parser = Stub("p", act=act)
    request_parser = make_parser(parser, metrics=metrics)
    for times in (1, 2, 3):
        with pytest.raises(ParserFailedError, match=f"^parser 'p' failed: {text}$"):
            request_parser.parse("r", {}, BODY)
        assert errors(metrics) == times
    assert len(parser.calls) == 3


def test_a_parser_that_returns_nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = Stub("p")
    monkeypatch.setattr(parser, "parse", lambda _: None)
    with pytest.raises(ParserFailedError, match=r"failed: TypeError$"):
        make_parser(parser).parse("r", {}, BODY)


def test_a_parser_that_cannot_rewrite_has_failed() -> None:
    metrics = Metrics()
    parsed = make_parser(Answering("p"), metrics=metrics).parse("r", {}, BODY)
    with pytest.raises(ParserFailedError, match=r"failed: ValueError$"):
        parsed.rewrite("other")
    assert errors(metrics) == 1


def test_a_response_that_cannot_be_read_passes_unread() -> None:
    metrics = Metrics()
    parsed = make_parser(Answering("p"), metrics=metrics).parse("r", {}, BODY)
    assert parsed.parser is not None
    find = reader_finder(parsed.parser, parsed.request)
    assert find is not None
    assert find({}) is None
    assert errors(metrics) == 1


def test_a_parser_without_responses_is_not_asked_for_any() -> None:
    parsed = make_parser(Stub("p")).parse("r", {}, BODY)
    assert parsed.parser is not None
    assert reader_finder(parsed.parser, parsed.request) is None
