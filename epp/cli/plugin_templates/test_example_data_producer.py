from pathlib import Path

import pytest

from epp.scheduling import StateKey
from epp.testing import load_plugin, make_plugin, make_request, make_state

ExampleDataProducer = load_plugin(
    Path(__file__).with_name("example_data_producer.py"), "ExampleDataProducer"
)
WORDS = StateKey[int]("example-data-producer-words")


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        pytest.param(b'"where is it"', 3, id="three words"),
        pytest.param(b"", 0, id="no prompt"),
    ],
)
def test_prepare(prompt: bytes, want: int) -> None:
    state = make_state()
    make_plugin(ExampleDataProducer).prepare(make_request(prompt=prompt), state)
    assert state.read(WORDS) == want
