"""Request bodies at the director: encodings, limits, paths and parsers that fail."""

import gzip
import json
from collections.abc import Callable
from typing import ClassVar

import pytest
import zstandard
from structlog.testing import capture_logs

from epp.parsing import HttpCall, Parser
from epp.request_control import (
    REQUEST_HEADERS_TO_SET,
    BadRequestError,
    BodyTooLargeError,
    InternalError,
    Pipeline,
    PreRequest,
    RequestError,
)
from epp.scheduling import CycleState, GuardRails, LLMRequest, NullObserver, SchedulingResult
from tools.harness.request_control import Epp, Policies, make_pool

BODY = b'{"model": "llama", "prompt": "hi", "seed": 1.10}'
REWRITTEN = BODY.replace(b"llama", b"llama-v2")
POLICIES = Policies(targets={"llama": "llama-v2"})
ENCODERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


class FailingParser(Parser):
    """Raises for every request."""

    type: ClassVar[str] = "failing-parser"
    name = "failing"
    claims: ClassVar[tuple[str, ...]] = ("/fail",)

    def parse(self, call: HttpCall) -> LLMRequest:
        raise KeyError("model")


class Tiering(PreRequest):
    """Replaces the headers to set by one."""

    type: ClassVar[str] = "tiering"
    name = "tiering"

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers: dict[str, str | None] = {"x-tier": "gold"}
        state.write(REQUEST_HEADERS_TO_SET, headers)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoded_body_is_read_and_goes_on_as_it_came(name: str) -> None:
    routed = Epp(make_pool()).handle(ENCODERS[name](BODY), {"content-encoding": name})
    assert (routed.request.model, routed.request.prompt) == ("llama", b'"hi"')
    assert routed.request.body_bytes == len(BODY)
    assert routed.body is None
    assert routed.decision.request_headers == {}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoded_body_that_is_changed_goes_on_without_its_encoding(name: str) -> None:
    epp = Epp(make_pool(), policies=POLICIES)
    routed = epp.handle(ENCODERS[name](BODY), {"content-encoding": name})
    assert routed.body == REWRITTEN
    assert routed.decision.request_headers == {"content-encoding": None}


def test_headers_that_a_plugin_sets_go_with_a_changed_body() -> None:
    epp = Epp(make_pool(), policies=POLICIES, plugins=[Tiering()])
    routed = epp.handle(gzip.compress(BODY), {"content-encoding": "gzip"})
    assert routed.body == REWRITTEN
    assert routed.decision.request_headers == {"x-tier": "gold", "content-encoding": None}


def test_a_plain_body_that_is_changed_keeps_its_headers() -> None:
    routed = Epp(make_pool(), policies=POLICIES).handle(BODY)
    assert routed.body == REWRITTEN
    assert routed.state.read(REQUEST_HEADERS_TO_SET) is None


def test_a_body_of_another_encoding_is_scheduled_on_load_alone() -> None:
    epp = Epp(make_pool(), policies=POLICIES)
    routed = epp.handle(b"\x0b\x02", {"content-encoding": "br"})
    assert (routed.request.model, routed.body) == ("", None)
    assert routed.find_reader is None


def test_a_body_that_is_too_long_without_its_encoding_is_refused() -> None:
    with capture_logs(), pytest.raises(BodyTooLargeError) as refused:
        Epp(make_pool(), max_decompressed_bytes=47).handle(
            gzip.compress(BODY), {"content-encoding": "gzip"}
        )
    assert (refused.value.status, str(refused.value)) == (
        413,
        "the request body decodes to more than 47 bytes",
    )


def test_a_body_that_is_not_encoded_as_it_says_is_the_clients_fault() -> None:
    with capture_logs(), pytest.raises(BadRequestError, match="is not valid gzip"):
        Epp(make_pool()).handle(BODY, {"content-encoding": "gzip"})


def test_a_request_that_no_parser_reads_is_passed_on_untouched() -> None:
    epp = Epp(make_pool(), policies=POLICIES)
    headers = {":path": "/v1/audio/transcriptions", "x-llm-d-model-name-rewrite": "other"}
    routed = epp.handle(b"--x\r\n", headers)
    assert (routed.request.model, routed.request.target_model) == ("", "")
    assert (routed.body, routed.find_reader) == (None, None)


def test_a_path_that_no_parser_reads_is_refused_where_none_reads_everything() -> None:
    epp = Epp(make_pool())
    scheduler = epp.director.pipeline.scheduler
    epp.director.pipeline = Pipeline.of(
        [FailingParser()], scheduler, GuardRails(observer=NullObserver())
    )
    with capture_logs(), pytest.raises(BadRequestError) as refused:
        epp.handle(headers={":path": "/v1/x?y=1"})
    assert refused.value.status == 400
    assert str(refused.value) == "no parser registered matching path suffix for: /v1/x"
    # Nothing has to be read where there is no body.
    assert epp.handle(b"", {":path": "/v1/x"}).request.path == "/v1/x"


def test_a_parser_that_fails_is_our_fault_each_time() -> None:
    parser = FailingParser()
    epp = Epp(make_pool(), plugins=[parser])
    for times in range(1, 6):  # more often than plugins may fail
        with capture_logs() as lines, pytest.raises(RequestError) as refused:
            epp.handle(headers={":path": "/fail"})
        assert isinstance(refused.value, InternalError)
        assert refused.value.status == 500
        assert [line["event"] for line in lines][-1] == "request refused"
        assert epp.failures("Parser", parser) == times
    assert epp.handle().request.model == "llama"


def test_the_response_of_a_model_is_read_by_the_parser_of_its_request() -> None:
    routed = Epp(make_pool()).handle()
    assert routed.find_reader is not None
    reader = routed.find_reader({"content-type": "application/json"})
    assert reader is not None
    reader.feed(json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode())
    usage = reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 4)
    assert routed.find_reader({"content-encoding": "gzip"}) is None
