"""Label selectors as text, with the syntax and the semantics of Kubernetes."""

import pytest

from epp_plugins.label_selectors import Labels, matcher_of_text

LABELS: dict[str, Labels] = {
    "a": {"app": "vllm", "tier": "gold", "size": "10"},
    "b": {"app": "vllm", "tier": "", "size": "9"},
    "c": {"app": "web", "example.com/x": "1", "size": "big"},
    "none": {},
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("app=vllm", "a b"),
        ("app==vllm", "a b"),
        ("app = vllm , tier = gold", "a"),
        ("app!=vllm", "c none"),
        ("app in (vllm, web)", "a b c"),
        ("app in (web)", "c"),
        ("app notin (web,other)", "a b none"),
        ("tier", "a b"),
        ("!tier", "c none"),
        ("! tier,app", "c"),
        ("tier=", "b"),
        ("tier in (,gold)", "a b"),
        ("example.com/x=1", "c"),
        ("size>9", "a"),
        ("size < 10", "b"),
        ("in in (in)", ""),
        ("app in (vllm),size>1,!example.com/x,tier!=gold", "b"),
    ],
)
def test_a_selector_matches_as_in_kubernetes(text: str, want: str) -> None:
    matches = matcher_of_text(text)
    assert " ".join(name for name, labels in LABELS.items() if matches(labels)) == want


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "cannot read ''", id="empty"),
        pytest.param(",", "cannot read ','", id="a comma alone"),
        pytest.param("a=b,", "cannot read ''", id="nothing after a comma"),
        pytest.param("a=b c=d", "cannot read 'a=b c=d'", id="no comma"),
        pytest.param("x,a in b", "cannot read 'a in b'", id="no parentheses"),
        pytest.param("a in (b", "cannot read", id="open parenthesis"),
        pytest.param("a within (b)", "cannot read", id="unknown word"),
        pytest.param("!a=b", "cannot read", id="negated comparison"),
        pytest.param("a=b=c", "cannot read", id="two values"),
        pytest.param("-a=b", "'-a' is no label name", id="bad key"),
        pytest.param("A.b/c/d", "must be a lower-case DNS name", id="bad prefix"),
        pytest.param("a=b_", "'b_' is no label value", id="bad value"),
        pytest.param("a in (b c)", "'b c' is no label value", id="bad value in a list"),
        pytest.param("a>b", "'b' is no whole number", id="no number"),
        pytest.param("-a>1", "'-a' is no label name", id="bad key of a comparison"),
    ],
)
def test_what_is_no_selector_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="label") as raised:
        matcher_of_text(text)
    assert message in str(raised.value)
