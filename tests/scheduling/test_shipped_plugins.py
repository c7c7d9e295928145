"""Checks of every plugin in ``epp_plugins.PLUGINS``."""

import inspect

import msgspec
import pytest

from epp.data_layer.plugins import Extractor
from epp.scheduling import Plugin
from epp_plugins import PLUGINS


def test_the_list_is_sorted_and_no_type_is_taken_twice() -> None:
    names = [plugin.__name__ for plugin in PLUGINS]
    assert names == sorted(names)
    assert len({plugin.type for plugin in PLUGINS}) == len(PLUGINS)


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.type)
def test_a_plugin_documents_its_type_and_takes_strict_parameters(plugin: type[Plugin]) -> None:
    module = inspect.getmodule(plugin)
    assert module is not None
    first_line, _, _ = (module.__doc__ or "").partition("\n")
    types, colon, _ = first_line.partition(": ")
    assert colon
    assert f"``{plugin.type}``" in types
    params = inspect.get_annotations(plugin.__init__, eval_str=True)["params"]
    with pytest.raises(msgspec.ValidationError, match="unknown field `noSuchField`"):
        msgspec.convert({"noSuchField": 1}, params)


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.type)
def test_a_key_that_is_read_has_a_default_producer_or_an_extractor(plugin: type[Plugin]) -> None:
    defaults = {key for other in PLUGINS for key in getattr(other, "default_for", ())}
    # An extractor is nothing without a source, so none is made by default.
    extracted = {key for other in PLUGINS if issubclass(other, Extractor) for key in other.writes}
    assert set(getattr(plugin, "reads", ())) <= defaults | extracted
