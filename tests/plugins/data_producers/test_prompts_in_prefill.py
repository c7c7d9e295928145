"""The prefix index against the cache of a prefill server.

A prefill server computes prompts in the order in which they were sent, and a prompt leaves it when
it is computed. So prompts age there from when they are sent, with ``tracksInFlight``, too: what the
index has when a prompt is sent is what the server's cache has when it computes that prompt.
"""

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from plugins.data_producers.test_approx_prefix_cache import BLOCK, chosen, looked_up, made
from plugins.data_producers.test_prompts_in_use import Cache

from epp.request_control.plugins import EndCause
from epp.scheduling import CycleState
from epp.testing import make_endpoint, make_request

CAPACITY = 6
PREFILL, DECODE = make_endpoint("p"), make_endpoint("d")


class PrefillServer:
    """A queue of prompts, and the cache of those that are computed."""

    def __init__(self) -> None:
        self.queue: deque[tuple[str, int]] = deque()
        """Prompts, and how many of their blocks the index had when they were sent."""
        self.cache = Cache()

    def compute(self) -> None:
        """Compute the oldest prompt; what the index had is what is cached now."""
        text, expected = self.queue.popleft()
        blocks = [hash(text[: end + 1]) for end in range(len(text))]
        assert sum(block in self.cache.blocks for block in blocks) == expected
        self.cache.add(blocks, CAPACITY, is_in_use=False)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(["a", "aaab", "aabb", "abab", "bbbb", "bbba", "aaaaaaaa"]),
            st.sampled_from(["compute", "end"]),
        ),
        max_size=40,
    )
)
def test_the_index_has_what_the_server_will_have_cached(steps: list[str]) -> None:
    producer = made({"tracksInFlight": True, "lruCapacityPerServer": CAPACITY})
    server, running = PrefillServer(), deque[CycleState]()
    for step in steps:
        if step == "compute":
            if server.queue:
                server.compute()
        elif step == "end":
            if running:
                state = running.popleft()
                producer.response_complete(make_request(), DECODE, EndCause.ENDED, state)
        else:
            prompt = b"".join(letter.encode() * BLOCK for letter in step)
            state, matches = looked_up(producer, prompt, [PREFILL, DECODE])
            server.queue.append((step, matches.blocks.get("p", 0)))
            chosen(producer, state, decode=DECODE, prefill=PREFILL)
            running.append(state)
    while server.queue:
        server.compute()
