import pytest

from epp.testing import check, make_endpoints, make_plugin, make_request, run_filter
from epp_example_plugins import MaxPromptFilter

ENDPOINTS = make_endpoints({"long": {"labels": {"long-context": "true"}}, "short": {}})


def test_the_class_is_in_good_order() -> None:
    check(MaxPromptFilter)


@pytest.mark.parametrize(
    ("prompt_bytes", "want"),
    [
        pytest.param(0, ["long", "short"], id="no prompt may go anywhere"),
        pytest.param(10, ["long", "short"], id="the limit itself may go anywhere"),
        pytest.param(11, ["long"], id="a longer one goes where the label is"),
    ],
)
def test_filter(prompt_bytes: int, want: list[str]) -> None:
    plugin = make_plugin(MaxPromptFilter, {"maxPromptBytes": 10})
    assert run_filter(plugin, make_request(prompt=b"x" * prompt_bytes), ENDPOINTS) == want


def test_the_environment_gives_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_PROMPT_BYTES", "3")
    assert run_filter(make_plugin(MaxPromptFilter), make_request(prompt=b"long"), ENDPOINTS) == [
        "long"
    ]


def test_an_environment_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_PROMPT_BYTES", "64k")
    with pytest.raises(ValueError, match="MAX_PROMPT_BYTES must be a whole number, not '64k'"):
        make_plugin(MaxPromptFilter)
