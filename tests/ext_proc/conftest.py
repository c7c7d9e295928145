"""The wires; a test that drives an ``Envoy`` and uses ``wire`` runs on all of them.

``on_one_wire`` in the harness restricts a test to one.
"""

from collections.abc import Iterator

import pytest

from ext_proc.socket_wire import SocketWire
from tools.harness.ext_proc import Envoy
from tools.harness.wires import DirectWire, Wire


@pytest.fixture(scope="package", params=["direct", "grpcio", "http2"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """The wire between every ``Envoy`` and its service, one for all tests."""
    made = DirectWire() if request.param == "direct" else SocketWire(request.param)
    Envoy.wire = made
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _hang_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reset the streams that a test has left open."""
    yield
    if "wire" in request.fixturenames:
        request.getfixturevalue("wire").hang_up()
