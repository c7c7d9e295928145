"""``epp serve --allow-experimental-plugins``: what a configuration with Alpha types needs."""

import pytest
from typer.testing import CliRunner

from epp.cli import cli

ALPHA = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: [{type: %s}]}"
REFUSED = "allow it with the flag --allow-experimental-plugins"
NO_ENDPOINTS = "no endpoints"
"""What comes after it: nothing is served here."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param([], REFUSED, id="without it"),
        pytest.param(["--allow-experimental-plugins=false"], REFUSED, id="off"),
        pytest.param(["--allow-experimental-plugins"], NO_ENDPOINTS, id="on"),
        pytest.param(["--allow-experimental-plugins=true"], NO_ENDPOINTS, id="on, with a value"),
    ],
)
def test_an_experimental_type_is_served_with_the_flag_alone(options: list[str], said: str) -> None:
    text = ALPHA % "agent-identity"
    done = CliRunner().invoke(cli, ["serve", "--config-text", text, *options])
    assert done.exit_code != 0
    assert said in done.output
    assert (REFUSED in done.output) is (said == REFUSED)
