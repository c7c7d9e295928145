"""The body of a response, without a stream."""

import pytest

from epp.ext_proc.modes import BUFFERED, FULL_DUPLEX, NONE, STREAMED
from epp.ext_proc.processing_response import (
    CONTINUE_RESPONSE_BODY,
    MAX_BODY_CHUNK_BYTES,
    echoed_response,
)
from epp.ext_proc.response_body import ResponseBody, report
from tools.harness.wires import Recorder


@pytest.mark.parametrize("mode", [STREAMED, BUFFERED, NONE])
def test_a_chunk_in_another_mode_passes(mode: int) -> None:
    transport = Recorder()
    body = ResponseBody(transport, mode, None, "r-1")
    body.pass_chunk(b"one", False, 1.0)
    body.pass_chunk(b"two", True, 2.0)
    assert transport.sent == [CONTINUE_RESPONSE_BODY] * 2
    assert body.size == 6
    assert not body.is_duplex


@pytest.mark.parametrize(
    "chunk", [b"", b"one", b"x" * MAX_BODY_CHUNK_BYTES, b"x" * (MAX_BODY_CHUNK_BYTES + 1)]
)
@pytest.mark.parametrize("end", [False, True])
def test_a_duplex_chunk_is_sent_back(chunk: bytes, end: bool) -> None:
    transport = Recorder()
    body = ResponseBody(transport, FULL_DUPLEX, None, "r-1")
    assert not body.has_begun
    body.pass_chunk(chunk, end, 1.0)
    assert transport.sent == list(echoed_response(chunk, end_of_stream=end))
    assert body.has_begun


def test_a_response_to_an_unscheduled_request_is_neither_read_nor_reported() -> None:
    transport = Recorder()
    body = ResponseBody(transport, FULL_DUPLEX, None, "r-1")
    assert not body.is_needed
    body.watch({"content-type": "application/json"})
    body.pass_chunk(b"{}", True, 1.0)
    body.flush()
    body.end(2.0, is_whole=True)
    assert body.report() == report(None, None) == b""
    assert len(transport.sent) == 1
