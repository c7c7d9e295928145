"""No name can change the elements of a page; it is shown as text."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.results.page.markup import Markup, element, joined, name_text
from epp.lab.results.page.numbers import (
    ceiling,
    figure,
    linear_ticks,
    log_ticks,
    milliseconds,
    percent,
    tick,
)

from .parsed import ParsedPage


@given(st.text())
def test_text_and_attributes_never_become_markup(text: str) -> None:
    page = ParsedPage(element("p", text, "x", title=text))
    assert page.tags == ["p"]
    assert [name for _, name, _ in page.attributes] == ["title"]


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", "<i>", class_='"x"', stroke_width=1.25)
    assert inner == '<b class="&quot;x&quot;" stroke-width="1.25">&lt;i&gt;</b>'
    assert joined([inner, "&"]) == f"{inner}&amp;"
    assert element("meta", name="x", content=None) == '<meta name="x">'


def test_characters_that_spoil_a_page_are_replaced() -> None:
    # A null byte, half of a surrogate pair, and one that reverses the text behind it.
    assert name_text("a\x00b\ud800c\u202ed") == "<bdi>a\ufffdb\ufffdc\ufffdd</bdi>"
    assert name_text("") == "<bdi>(none)</bdi>"
    assert name_text("שם").encode()  # another direction of its own is isolated, not replaced


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123, "0.0012"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"),
     (1234.5, "1,234"), (None, "-")],
)  # fmt: skip
def test_a_figure_has_about_three_digits(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_units_are_written_once() -> None:
    assert (milliseconds(412), milliseconds(12_340), milliseconds(None)) == (
        "412 ms",
        "12.3 s",
        "-",
    )
    assert (percent(0.9345), percent(None)) == ("93.5%", "-")
    assert (tick(20_000), tick(2_500_000), tick(0.5)) == ("20k", "2.5M", "0.5")


@pytest.mark.parametrize(("value", "above"), [(0, 1), (0.03, 0.05), (1, 1), (2.1, 5), (70, 100)])
def test_a_ceiling_is_a_round_number(value: float, above: float) -> None:
    assert ceiling(value) == pytest.approx(above)


@given(st.just(0.0) | st.floats(1e-6, 1e9))
def test_linear_ticks_reach_the_largest_value(most: float) -> None:
    ticks = linear_ticks(most)
    assert ticks[-1] >= most * 0.999
    assert ticks[-1] > 0
    assert len(ticks) <= 6


def test_logarithmic_ticks_thin_out() -> None:
    assert log_ticks(30, 1500) == pytest.approx([50, 100, 200, 500, 1000])
    assert log_ticks(3, 15_000) == pytest.approx([10, 100, 1000, 10_000])


def test_markup_survives_html_unescape() -> None:
    assert html.unescape(Markup(element("p", "a<b & 'c'"))) == "<p>a<b & 'c'</p>"
