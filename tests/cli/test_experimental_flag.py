"""``epp serve --allow-experimental-plugins``: configurations with Alpha types require it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

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
    done = subprocess.run(
        [sys.executable, "-m", "epp", "serve", "--config-text", text, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert said in last
    assert (REFUSED in last) is (said == REFUSED)
