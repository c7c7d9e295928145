import pytest

from epp.testing import make_plugin, make_request, make_state
from epp_plugins.data_producers.agent_identity import AgentIdentity
from epp_plugins.state_keys import AGENT_IDENTITY

CLAUDE, OPENCODE = "x-claude-code-session-id", "x-session-affinity"


@pytest.mark.parametrize(
    ("additional", "headers", "want"),
    [
        pytest.param((), {CLAUDE: "c"}, "c", id="Claude Code"),
        pytest.param((), {OPENCODE: "o"}, "o", id="OpenCode"),
        pytest.param((), {"session-id": "x"}, "x", id="Codex"),
        pytest.param((), {"session_id": "y"}, "y", id="an older Codex"),
        pytest.param(
            (),
            {"session_id": "y", "session-id": "x", OPENCODE: "o", CLAUDE: "c"},
            "c",
            id="the order is ours, not the client's",
        ),
        pytest.param((), {"session_id": "y", "session-id": "x"}, "x", id="the newer Codex first"),
        pytest.param(("X-Mine",), {"x-mine": "m", CLAUDE: "c"}, "m", id="additional ones first"),
        pytest.param(
            ("x-2", "x-1"), {"x-1": "1", "x-2": "2"}, "2", id="additional ones in their order"
        ),
        pytest.param(("x-mine",), {CLAUDE: "c"}, "c", id="the known ones are still asked"),
        pytest.param((), {CLAUDE: "  c "}, "c", id="blanks around it"),
        pytest.param((), {CLAUDE: " ", OPENCODE: "o"}, "o", id="an empty one is none"),
        pytest.param((), {CLAUDE: "x" * 257, OPENCODE: "o"}, "o", id="one too long is none"),
        pytest.param((), {CLAUDE: "a\tb", OPENCODE: "o"}, "o", id="a control character: none"),
        pytest.param((), {"x-session-id": "s"}, "", id="no header of an agent"),
        pytest.param((), {}, "", id="no header"),
    ],
)
def test_identity(additional: tuple[str, ...], headers: dict[str, str], want: str) -> None:
    plugin = make_plugin(AgentIdentity, {"additionalSessionHeaders": additional})
    request, state = make_request(headers=headers), make_state()
    plugin.process_request_headers(request, state)
    assert state.read(AGENT_IDENTITY) == (want or None)
    assert request.fairness_id == want


def test_a_fairness_id_that_the_request_has_stays() -> None:
    request, state = make_request(headers={CLAUDE: "c"}), make_state()
    request.fairness_id = "tenant-1"
    make_plugin(AgentIdentity).process_request_headers(request, state)
    assert (request.fairness_id, state.read(AGENT_IDENTITY)) == ("tenant-1", "c")


def test_headers_that_are_no_list_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected `array`, got `str` .*additionalSessionHeaders"):
        make_plugin(AgentIdentity, {"additionalSessionHeaders": "x-mine"})
