"""The signed header that forces an endpoint: accepted values, and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.request_control.errors import ForceDeniedError
from epp.request_control.force_header import MAX_LIFETIME_SECONDS, signed, verified

KEY, OTHER = b"k" * 32, b"o" * 32
NOW = 1_000_000.5
VALUE = signed("10.0.0.7:8000", 1_000_060, KEY)
SIGNATURE = VALUE.rpartition("=")[2]


def test_the_format_does_not_change() -> None:
    # Others may sign without `epp force-endpoint`; docs/operations.md shows how with openssl.
    assert VALUE == (
        "10.0.0.7:8000;exp=1000060;"
        "sig=ae5d312551b662bae11fe1ba3914933d17e5b1030a0ad167ef0d1d274181d432"
    )


@pytest.mark.parametrize("endpoint", ["10.0.0.7:8000", "[fd00::7]:8000", "default/vllm-0", "a"])
@pytest.mark.parametrize("keys", [[KEY], [OTHER, KEY], [KEY, OTHER]])
def test_a_header_signed_with_any_of_the_keys_names_its_endpoint(
    endpoint: str, keys: list[bytes]
) -> None:
    assert verified(signed(endpoint, 1_000_060, KEY), keys, NOW) == endpoint


@pytest.mark.parametrize(
    ("value", "keys", "why"),
    [
        pytest.param(VALUE, [OTHER], "no key of --force-endpoint-key-file has made", id="key"),
        pytest.param(VALUE, [], "no key of --force-endpoint-key-file has made", id="no key"),
        pytest.param(
            VALUE.replace(".7", ".8"), [KEY], "no key of --force-endpoint-key", id="endpoint"
        ),
        pytest.param(
            VALUE.replace("1000060", "1000070"), [KEY], "no key of --force-endpoint", id="expiry"
        ),
        pytest.param(
            VALUE.replace("1000060", "01000060"), [KEY], "no key of --force-endpoint", id="digits"
        ),
        pytest.param(
            signed("a", 999_990, KEY), [KEY], r"expired 10 s ago; make a new one", id="expired"
        ),
        pytest.param(
            signed("a", 1_000_601, KEY),
            [KEY],
            "is valid for 600 s more, but at most 600 s are allowed; shorten --for",
            id="too long",
        ),
        pytest.param("", [KEY], "is malformed: it must be ENDPOINT;exp=", id="empty"),
        pytest.param("10.0.0.7:8000", [KEY], "is malformed", id="without a signature"),
        pytest.param(f"{VALUE}\n", [KEY], "is malformed", id="line feed"),
        pytest.param(f"{VALUE},{VALUE}", [KEY], "is malformed", id="sent twice"),
        pytest.param(VALUE.replace(SIGNATURE, SIGNATURE.upper()), [KEY], "malformed", id="case"),
        pytest.param(f"a;exp=²;sig={SIGNATURE}", [KEY], "malformed", id="a digit of another kind"),
    ],
)
def test_any_other_header_is_denied_with_the_reason(
    value: str, keys: list[bytes], why: str
) -> None:
    with pytest.raises(ForceDeniedError, match=why) as caught:
        verified(value, keys, NOW)
    assert str(caught.value).startswith("header x-epp-force-endpoint")
    assert caught.value.status == 403


def test_the_longest_lifetime_is_accepted() -> None:
    assert verified(signed("a", 1_000_000 + MAX_LIFETIME_SECONDS, KEY), [KEY], NOW) == "a"


@given(st.text(max_size=200))
def test_no_text_of_a_client_is_accepted_or_fails_otherwise(text: str) -> None:
    with pytest.raises(ForceDeniedError):
        verified(text, [KEY], NOW)


@given(st.integers(0, len(VALUE) - 1), st.characters(min_codepoint=32, max_codepoint=126))
def test_no_other_character_fits_the_signature(place: int, character: str) -> None:
    changed = VALUE[:place] + character + VALUE[place + 1 :]
    if changed != VALUE:
        with pytest.raises(ForceDeniedError):
            verified(changed, [KEY], NOW)


@pytest.mark.parametrize("endpoint", ["", "a;b", "a b", "ä", "a\n", "x" * 513])
def test_what_cannot_be_written_in_a_header_is_not_signed(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is no name or address of an endpoint"):
        signed(endpoint, 1_000_060, KEY)
