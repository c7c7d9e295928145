"""Every message in every state and every pair of modes: a complete table."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest

from epp.ext_proc import ExtProcSettings, ExtProcState
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tools.harness.ext_proc import Envoy, Mode, Modes, on_no_transport
from tools.harness.held import Change, HeldDecision
from tools.harness.judge import (
    ALL_MODES,
    UNKNOWN_MODE,
    JudgingEnvoy,
    Step,
    change_nothing,
    rename,
    reply_legally_and_release,
)

# A few thousand streams.
pytestmark = [on_no_transport, pytest.mark.usefixtures("wire")]

HELD = (Mode.BUFFERED, Mode.BUFFERED_PARTIAL)
FULL_DUPLEX = Mode.FULL_DUPLEX_STREAMED
MODES = [mode for mode in ALL_MODES if mode != Mode.GRPC]
PAIRS: list[Modes | None] = [None, *product(MODES, MODES)]

_IN_ORDER: list[tuple[ExtProcState, Step]] = [
    (ExtProcState.REQUEST_BODY, Envoy.request_headers),
    (ExtProcState.DECIDING, Envoy.request_body),
    (ExtProcState.RESPONSE_HEADERS, JudgingEnvoy.decide_if_asked),
    (ExtProcState.RESPONSE_BODY, partial(Envoy.response_headers, headers={"content-type": "json"})),
    (ExtProcState.CLOSED, Envoy.response_trailers),
]
"""The step from each state to the next; a request without a body skips a state."""

EXPECTED: dict[ExtProcState, set[str]] = {
    ExtProcState.REQUEST_HEADERS: {"request_headers"},
    # Envoy's own reply to the client, such as 413, may come at any time.
    ExtProcState.REQUEST_BODY: {"request_body", "request_trailers", "response_headers"},
    # The end of a body over 1 MB may be told twice (envoy#46237).
    ExtProcState.DECIDING: {"request_body", "request_trailers", "response_headers"},
    ExtProcState.RESPONSE_HEADERS: {"request_body", "request_trailers", "response_headers"},
    ExtProcState.RESPONSE_BODY: {
        "request_body",
        "request_trailers",
        "response_body",
        "response_trailers",
    },
    ExtProcState.CLOSED: set(),
}
"""The messages that have a meaning in each state."""

MESSAGES: dict[str, Step] = {
    "request_headers": Envoy.request_headers,
    "request_headers, the end": partial(Envoy.request_headers, end=True),
    "request_body": partial(Envoy.request_body, end=False),
    "request_body, the end": Envoy.request_body,
    "request_body, empty": partial(Envoy.request_body, body=b"", end=False),
    "request_trailers": Envoy.request_trailers,
    "response_headers": Envoy.response_headers,
    "response_headers, the end": partial(Envoy.response_headers, end=True),
    "response_body": Envoy.response_body,
    "response_body, the end": partial(Envoy.response_body, end=True),
    "response_body, empty": partial(Envoy.response_body, body=b""),
    "response_trailers": Envoy.response_trailers,
    "no phase": lambda envoy: envoy.send(pb.ProcessingRequest()),
    "no message": JudgingEnvoy.garble,
}
EVENTS: dict[str, Step] = {
    "writable": Envoy.writable,
    "half-close": Envoy.half_close,
    "reset": Envoy.reset,
    "drain": Envoy.drain,
}


def reaching(state: ExtProcState, modes: Modes | None) -> list[Step] | None:
    """Return the steps to ``state``; None if these modes never reach it."""
    has_no_body = modes is not None and modes[0] == Mode.NONE
    if has_no_body and state is ExtProcState.REQUEST_BODY:
        return None
    steps = []
    if state is not ExtProcState.REQUEST_HEADERS:
        for reached, step in _IN_ORDER:
            if not (has_no_body and reached is ExtProcState.DECIDING):
                steps.append(step)
            if reached is state:
                break
    return steps


def streams(
    state: ExtProcState, last_step: Callable[[JudgingEnvoy], None], change: Change
) -> Iterator[JudgingEnvoy]:
    """Bring a stream to ``state`` in each pair of modes that can reach it, and take a last step."""
    for modes in PAIRS:
        steps = reaching(state, modes)
        if steps is not None:
            yield reply_legally_and_release(
                modes=modes,
                sends_ahead=True,
                settings=ExtProcSettings(),
                steps=[*steps, last_step],
                fails_in=frozenset(),
                kind=HeldDecision,
                change=change,
                last="reset",
            )


def was_expected(name: str, state: ExtProcState, envoy: JudgingEnvoy) -> bool:
    kind = name.partition(",")[0]
    if kind == "request_trailers" and envoy.request_mode in HELD:
        return state not in {ExtProcState.REQUEST_HEADERS, ExtProcState.REQUEST_BODY} and (
            kind in EXPECTED[state]
        )
    return kind in EXPECTED[state]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(pytest.param(name, change_nothing, id=name) for name in MESSAGES),
        *(pytest.param(name, rename, id=f"{name}, renamed") for name in MESSAGES if "resp" in name),
    ],
)
@pytest.mark.parametrize("state", ExtProcState, ids=lambda state: state.name)
def test_message_in_state(state: ExtProcState, name: str, change: Change) -> None:
    def send_and_check(envoy: JudgingEnvoy) -> None:
        assert envoy.stream.state is state
        was_finished = envoy.finished
        MESSAGES[name](envoy)
        if state is ExtProcState.CLOSED:
            assert envoy.kinds == []
            assert envoy.finished == was_finished
        elif not was_expected(name, state, envoy):
            # Before the response an error takes its place; from then on it is left alone.
            is_early = state is not ExtProcState.RESPONSE_BODY and not name.startswith("response")
            assert envoy.finished == [(0, "")]
            assert envoy.stream.state is ExtProcState.CLOSED
            assert envoy.kinds == (["immediate_response"] if is_early else [])
        elif envoy.finished:
            # Understood and turned down: a body that Envoy has cut off.
            assert envoy.request_mode == Mode.BUFFERED_PARTIAL
            (reply,) = envoy.replies
            assert reply.immediate_response.status.code == 413

    assert len(list(streams(state, send_and_check, change))) >= len(PAIRS) - len(MODES)


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", ExtProcState, ids=lambda state: state.name)
def test_event_in_state(state: ExtProcState, name: str) -> None:
    def happen(envoy: JudgingEnvoy) -> None:
        assert envoy.stream.state is state
        envoy.take()
        EVENTS[name](envoy)
        is_undecided = state.value <= ExtProcState.DECIDING.value
        if name == "writable":
            assert envoy.stream.state is state
        elif name == "drain" and is_undecided:
            envoy.immediate += 1
            assert envoy.kinds == ["immediate_response"]
        else:
            assert envoy.stream.state is ExtProcState.CLOSED
            assert set(envoy.kinds) <= {"response_body"}

    assert len(list(streams(state, happen, rename))) >= len(PAIRS) - len(MODES)


@pytest.mark.parametrize("mode", [Mode.GRPC, UNKNOWN_MODE], ids=["GRPC", "a mode yet to come"])
@pytest.mark.parametrize("side", [0, 1], ids=["of the request", "of the response"])
def test_modes_that_cannot_work_end_at_the_first_message(
    side: int, mode: Mode.BodySendMode
) -> None:
    for other, name in product(MODES, MESSAGES):
        modes = (mode, other) if side == 0 else (other, mode)

        def send_and_check(envoy: JudgingEnvoy, name: str = name) -> None:
            assert envoy.kinds == ["immediate_response"]
            assert envoy.finished == [(0, "")]
            MESSAGES[name](envoy)
            assert envoy.kinds == []

        reply_legally_and_release(
            modes=modes,
            sends_ahead=True,
            settings=ExtProcSettings(),
            steps=[Envoy.request_headers, send_and_check],
            fails_in=frozenset(),
            kind=HeldDecision,
            change=change_nothing,
            last="reset",
        )


def test_streamed_bodies_that_wait_for_a_reply_end_at_the_first_message() -> None:
    envoy = reply_legally_and_release(
        modes=(Mode.STREAMED, Mode.NONE),
        sends_ahead=False,
        settings=ExtProcSettings(),
        steps=[Envoy.request_headers, Envoy.request_body],
        fails_in=frozenset(),
        kind=HeldDecision,
        change=change_nothing,
        last="half_close",
    )
    assert envoy.immediate == 1
    assert envoy.sent["request_headers"] == 1
