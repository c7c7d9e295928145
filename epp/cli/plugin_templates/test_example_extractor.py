from pathlib import Path

import pytest

from epp.data_layer.plugins import Page
from epp.scheduling import AttributeKey
from epp.testing import load_plugin, make_endpoint, make_plugin

ExampleExtractor = load_plugin(Path(__file__).with_name("example_extractor.py"), "ExampleExtractor")
VALUE = AttributeKey[float]("ExampleExtractor/example-extractor")


@pytest.mark.parametrize(
    ("page", "want"),
    [
        pytest.param(b"# HELP depth d\ndepth 3\n", 3.0, id="a plain gauge"),
        pytest.param(b'depth{q="a"} 1\ndepth{q="b"} 2.5\n', 3.5, id="series are added"),
        pytest.param(b"depths 7\n", None, id="another metric"),
    ],
)
def test_extract(page: bytes, want: float | None) -> None:
    endpoint = make_endpoint()
    make_plugin(ExampleExtractor, {"metric": "depth"}).extract(endpoint, Page(page, 0.0))
    assert endpoint.attribute(VALUE) == want
