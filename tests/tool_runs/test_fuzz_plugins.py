"""The target of plugins that return junk, on random inputs."""

import pytest

from tools.fuzz import plugins

INPUTS = 10


@pytest.mark.parametrize("point", plugins.POINTS)
def test_a_plugin_that_returns_junk_harms_one_request_and_is_named(point: str) -> None:
    blamed = 0
    for data in plugins.inputs(point, INPUTS):
        try:
            run = plugins.one_input(data)
        except Exception as error:
            error.add_note(f"input: {data.hex()}")
            raise
        assert run.deed.point == point
        blamed += run.failures > 0
    assert blamed
