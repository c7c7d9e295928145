"""Metric names in the syntax of the reference's configurations."""

import pytest

from epp.data_layer.plugins import PageTooLargeError
from epp_plugins.data_sources.metric_spec import MAX_LABELS_BYTES, MetricSpec, parse_labels


@pytest.mark.parametrize(
    ("text", "family", "labels"),
    [
        pytest.param("vllm:num_requests_waiting", b"vllm:num_requests_waiting", (), id="a name"),
        pytest.param("  a_b ", b"a_b", (), id="blanks around it"),
        pytest.param("m{type=waiting}", b"m", (("type", "waiting"),), id="a plain label"),
        pytest.param('m{type="a, b"}', b"m", (("type", "a, b"),), id="a quoted label"),
        pytest.param('m{t=""}', b"m", (("t", ""),), id="an empty label"),
        pytest.param(
            'm { a = 1 , b="2" }', b"m", (("a", "1"), ("b", "2")), id="two labels with blanks"
        ),
        pytest.param("m{}", b"m", (), id="empty braces"),
    ],
)
def test_specifications_are_read(
    text: str, family: bytes, labels: tuple[tuple[str, str], ...]
) -> None:
    assert MetricSpec.parse(text) == MetricSpec(text, family, labels)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("9lives", "'9lives' is no metric; write name or name", id="digit in front"),
        pytest.param("a b", "'a b' is no metric", id="two words"),
        pytest.param("m{a=1", "is no metric", id="brace not closed"),
        pytest.param("m{a}", "'a' is not label=value", id="label without a value"),
        pytest.param("m{a=1 b=2}", "'a=1 b=2' is not label=value", id="no comma"),
        pytest.param("m{a=1,=2}", "'=2' is not label=value", id="value without a label"),
    ],
)
def test_other_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="is no") as caught:
        MetricSpec.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "labels", "expected"),
    [
        pytest.param("m", b"", True, id="nothing wanted, nothing there"),
        pytest.param("m", b'{a="1"}', True, id="nothing wanted"),
        pytest.param("m{a=1}", b'{b="2",a="1"}', True, id="among others"),
        pytest.param("m{a=1}", b'{a="2"}', False, id="another value"),
        pytest.param("m{a=1}", b"", False, id="no labels"),
        pytest.param("m{a=1,b=2}", b'{a="1"}', False, id="one of two"),
    ],
)
def test_series_are_told_apart_by_their_labels(spec: str, labels: bytes, expected: bool) -> None:
    assert MetricSpec.parse(spec).matches(parse_labels(labels)) is expected


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        pytest.param(b"a" * 16_000 + b'!,b="c"', {"b": "c"}, id="a word without an end"),
        pytest.param(b'a="' + b"x" * 16_000, {}, id="a value without an end"),
        pytest.param(b'a="' + b"\\" * 16_001, {}, id="an escape without an end"),
    ],
)
def test_labels_are_read_in_one_pass(inside: bytes, expected: dict[str, str]) -> None:
    # Searched from each letter of the first word, a megabyte takes hours.
    assert parse_labels(b"{" + inside + b"}") == expected


def test_labels_that_are_too_long_are_refused() -> None:
    text = b'{a="' + b"x" * MAX_LABELS_BYTES + b'"}'
    with pytest.raises(PageTooLargeError, match="more than 16384 bytes"):
        parse_labels(text)
