"""The connection target on random inputs, without atheris."""

from collections import Counter

import pytest
from structlog.testing import capture_logs

from tools.fuzz import connection as target
from tools.fuzz.peer import Peer
from tools.soak import frames

INPUTS = 160


@pytest.mark.parametrize("seed", range(8))
def test_nothing_a_client_sends_breaks_the_connection_or_the_session(seed: int) -> None:
    with capture_logs():
        for data in target.inputs(seed, INPUTS):
            try:
                target.one_input(data)
            except Exception as error:
                error.add_note(f"input: {data.hex()}")
                raise


def test_random_inputs_reach_what_they_are_meant_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[Peer] = []
    make = Peer.__init__

    def remember(peer: Peer) -> None:
        make(peer)
        peers.append(peer)

    monkeypatch.setattr(Peer, "__init__", remember)
    with capture_logs():
        for data in target.inputs(0, INPUTS):
            target.one_input(data)
    seen = sum((peer.seen for peer in peers), Counter[int]())
    ends = {peer.is_gone for peer in peers}
    assert ends == {False, True}
    for kind in (
        frames.DATA,
        frames.HEADERS,
        frames.RST_STREAM,
        frames.SETTINGS,
        frames.PING,
        frames.GOAWAY,
        frames.WINDOW_UPDATE,
    ):
        assert seen[kind] > 10
    assert sum(sum(peer.contents.values()) for peer in peers) > 20_000
