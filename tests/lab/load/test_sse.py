"""Events come out the same wherever the chunks are cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epp.lab.load.sse import EventDecoder

STREAM = (
    b': keep-alive\n\ndata: {"a":1}\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\n'
    b"\n\nid: 3\n\ndata: [DONE]\n\ndata: unfinished"
)
EVENTS = [b'{"a":1}', b"one\ntwo", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cut_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = EventDecoder()
    events: list[bytes] = []
    for start, end in pairwise(edges):
        events += decoder.feed(STREAM[start:end])
    assert events == EVENTS
