"""Units of durations and sizes on the command line."""

import pytest

from epp.cli.units import count, duration, quantity, signed_duration, size, true_or_false


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50ms", 0.05),
        ("2s", 2.0),
        ("1.5s", 1.5),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("100ns", 1e-7),
        ("0s", 0.0),
        ("0", 0.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("+2s", 2.0),
        ("-0s", 0.0),
        ("1h30m0.5s", 5400.5),
    ],
)
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "--5s", "5x", "1s2", "x1s", "1s,2s", "1e3s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as") as caught:
        duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4194304", 4194304),
        ("10MiB", 10 * 2**20),
        ("10Mi", 10 * 2**20),
        ("25MB", 25_000_000),
        ("1.5KiB", 1536),
        ("2k", 2000),
        ("2KB", 2000),
        ("1GiB", 2**30),
        ("3G", 3 * 10**9),
        ("7B", 7),
        ("1e6", 1_000_000),
        ("1Ti", 2**40),
        ("1.5Mi", 3 * 2**19),
        ("1.5", 2),
        ("0", 0),
    ],
)
def test_quantity_is_parsed(text: str, size: int) -> None:
    assert quantity(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "10 MiB", "-1", "10XB", "10Kii", "10iB", "1Te", "9Ei"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as") as caught:
        quantity(text)
    assert repr(text) in str(caught.value)


def test_a_duration_below_0_is_refused_but_where_it_means_the_least() -> None:
    with pytest.raises(ValueError, match="'-5s' must not be negative"):
        duration("-5s")
    assert signed_duration("-1.5s") == -1.5


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        *((text, True) for text in ("1", "t", "T", "true", "True", "TRUE")),
        *((text, False) for text in ("0", "f", "F", "false", "False", "FALSE")),
    ],
)
def test_a_boolean_is_one_of_go(text: str, *, is_true: bool) -> None:
    assert true_or_false("--flag", text) is is_true


@pytest.mark.parametrize("text", ["", "yes", "no", "tRUE", "2", "on"])
def test_what_is_no_boolean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^--flag must be true or false, not '{text}'"):
        true_or_false("--flag", text)


def test_size_is_a_quantity_that_is_more_than_none() -> None:
    assert size("1KiB") == 1024
    with pytest.raises(ValueError, match="'0' must be positive"):
        size("0")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("10000", 10_000)])
def test_count_is_parsed(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "1.5", "1.0", "-1", "+1", "1k", "1_000", " 1", "٣"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number") as caught:
        count(text)
    assert repr(text) in str(caught.value)
