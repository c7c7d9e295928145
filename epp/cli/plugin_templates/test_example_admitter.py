from pathlib import Path

import pytest

from epp.request_control.plugins import AdmissionDeniedError
from epp.testing import load_plugin, make_endpoint, make_plugin, make_request, make_state

ExampleAdmitter = load_plugin(Path(__file__).with_name("example_admitter.py"), "ExampleAdmitter")
PLUGIN = make_plugin(ExampleAdmitter, {"maxBodyBytes": 4})


def test_a_body_at_the_limit_is_let_in() -> None:
    PLUGIN.admit(make_request(prompt=b'"ab"'), [make_endpoint()], make_state())


def test_a_longer_body_is_turned_away() -> None:
    with pytest.raises(AdmissionDeniedError, match="5 bytes; 4 are allowed"):
        PLUGIN.admit(make_request(prompt=b'"abc"'), [make_endpoint()], make_state())
