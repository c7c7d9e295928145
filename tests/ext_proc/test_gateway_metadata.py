"""The gRPC metadata of a gateway."""

import pytest
from structlog.testing import capture_logs

from epp.ext_proc.gateway_metadata import (
    DEFAULT,
    HEDGING,
    MAX_DESTINATIONS,
    GatewayAbilities,
    _abilities,
    abilities,
)


@pytest.mark.parametrize("text", ["0", "9", "-1", "two", "", "²", "3,4"])
def test_a_wrong_number_is_logged_once_and_means_one(text: str) -> None:
    _abilities.cache_clear()
    with capture_logs() as logs:
        assert {abilities({MAX_DESTINATIONS: text, HEDGING: "true"}) for _ in range(3)} == {DEFAULT}
    assert [each["value"] for each in logs] == [text]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, DEFAULT),
        ({MAX_DESTINATIONS: "1"}, GatewayAbilities(1)),
        ({MAX_DESTINATIONS: "8"}, GatewayAbilities(8)),
        ({MAX_DESTINATIONS: "3", HEDGING: "true"}, GatewayAbilities(3, can_hedge=True)),
        ({MAX_DESTINATIONS: "3", HEDGING: "yes"}, GatewayAbilities(3)),
        ({MAX_DESTINATIONS: "1", HEDGING: "true"}, GatewayAbilities(1)),
        ({HEDGING: "true"}, DEFAULT),
    ],
)
def test_a_gateway_can_do_what_it_says(headers: dict[str, str], expected: GatewayAbilities) -> None:
    assert abilities(headers) == expected
