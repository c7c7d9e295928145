"""The tables of the reference's names agree with the installed plugins."""

import pytest

from epp.config import PluginRegistry
from epp.config.plugin_checks import params_of
from epp.config.supported import (
    DEFAULT_DETECTOR,
    DEFAULT_EVICTION_POLICIES,
    DEFAULT_PARSERS,
    DEFAULT_POLICIES,
    DEPRECATED_TYPES,
    NOT_SUPPORTED_YET,
    OLD_TYPES,
    TYPES_WITHOUT_PARAMETERS,
    unsupported_type,
)

INSTALLED = frozenset(plugin.type for plugin in PluginRegistry.from_entry_points())


def test_what_is_installed_is_not_called_missing() -> None:
    assert sorted(NOT_SUPPORTED_YET & INSTALLED) == []


def test_types_without_parameters_are_installed_and_have_none() -> None:
    plugins = {plugin.type: plugin for plugin in PluginRegistry.from_entry_points()}
    fields = {name: params_of(plugins[name]).__struct_fields__ for name in TYPES_WITHOUT_PARAMETERS}
    assert {name: own for name, own in fields.items() if own} == {}


def test_every_default_policy_is_installed() -> None:
    assert DEFAULT_POLICIES | DEFAULT_EVICTION_POLICIES <= INSTALLED


def test_every_default_parser_is_installed() -> None:
    assert set(DEFAULT_PARSERS) <= INSTALLED


def test_default_detector_and_every_deprecated_type_are_installed() -> None:
    assert {DEFAULT_DETECTOR, *DEPRECATED_TYPES} <= INSTALLED


@pytest.mark.parametrize(("old", "new"), OLD_TYPES.items())
def test_old_type_stands_for_one_that_is_installed(old: str, new: str) -> None:
    assert new in INSTALLED
    assert old not in NOT_SUPPORTED_YET


def test_missing_type_is_refused_by_name_and_an_unknown_one_is_not_known() -> None:
    assert unsupported_type("precise-prefix-cache-producer") == (
        "plugin type `precise-prefix-cache-producer` is not supported yet; remove what uses it"
    )
    assert unsupported_type("queue-scorrer") is None
