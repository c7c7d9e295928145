"""Durations and quantities as the reference writes them."""

import re

import pytest

from epp.inputs import duration_seconds, optional_duration_seconds, quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60.0),
        ("200ms", 0.2),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("2.s", 2.0),
        ("1us1µs1μs", 3e-6),
        ("7ns", 7e-9),
        ("0s", 0.0),
        ("0", 0.0),
    ],
)
def test_duration_is_read(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    "value", ["", "s", "60 s", "-1s", "1s2", "1d", "1e3s", "1s" * 40, "٣s", "٣", -1, "6" * 65]
)
def test_what_is_no_duration_is_refused_with_an_example(value: str | float) -> None:
    with pytest.raises(ValueError, match="write it as 200ms, 60s or 1m30s") as caught:
        duration_seconds(value)
    assert str(caught.value).startswith(f"`{str(value)[:64]}` is not a duration")


@pytest.mark.parametrize("value", ["60", 60, 0, 1.5])
def test_number_alone_is_no_duration_and_units_are_proposed(value: str | float) -> None:
    said = f"`{value}` is no duration, as it has no unit; write `{value}s` or `{value}ms`"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        duration_seconds(value)
    assert duration_seconds(f"{value}s") == float(value)


def test_duration_beyond_64_bits_of_nanoseconds_is_refused() -> None:
    assert duration_seconds("2562047h") == 2562047 * 3600
    with pytest.raises(ValueError, match="`2562048h` is too long; 2562047h is the most"):
        duration_seconds("2562048h")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5000, 5000),
        ("5000", 5000),
        ("+7", 7),
        ("20k", 20_000),
        ("1G", 10**9),
        ("10Gi", 10 * 2**30),
        ("1.5Ki", 1536),
        (".5M", 500_000),
        ("1e3", 1000),
        ("1E-3", 1),  # 0.001, rounded up
        ("1500m", 2),  # 1.5, rounded up
        ("1n", 1),
        ("0", 0),
        ("7Ei", 7 * 2**60),
    ],
)
def test_quantity_is_read(value: str | int, number: int) -> None:
    assert quantity(value) == number


@pytest.mark.parametrize(
    "value", ["", "k", "10Gib", "10 Gi", "-1", -1, "1e", "1e9999", "1K", "0x10", "1_000", "9" * 65]
)
def test_what_is_no_quantity_is_refused_with_an_example(value: str | int) -> None:
    with pytest.raises(ValueError, match="write it as 5000, 20k or 10Gi") as caught:
        quantity(value)
    assert str(caught.value).startswith(f"`{str(value)[:64]}` is not a quantity")


@pytest.mark.parametrize("text", ["8Ei", "1e999", "9223372036854775808"])
def test_quantity_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"quantity `{text}` is too large"):
        quantity(text)


def test_an_empty_text_may_stand_for_no_duration() -> None:
    assert (optional_duration_seconds(""), optional_duration_seconds("1.5s")) == (0.0, 1.5)
    with pytest.raises(ValueError, match="has no unit"):
        optional_duration_seconds(0)
