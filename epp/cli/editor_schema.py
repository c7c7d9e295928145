"""The JSON Schema of configurations, for completion and validation in editors.

The schema is generated from the types of the loader; the descriptions come from docstrings. The
schema of a plugin's ``parameters`` depends on its ``type``, with one condition per plugin.
"""

import inspect
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from epp.cli.parameter_docs import field_docs
from epp.cli.plugin_docs import describe
from epp.config import ConfigFile
from epp.config.plugin_checks import check_plugin_class, params_of
from epp.config.schema import PluginEntry
from epp.config.supported import OLD_TYPES
from epp.scheduling import Plugin

Schema = dict[str, Any]

_REF = "#/$defs/{name}"
_FILE_TYPE = r"^file:.+\.py:[A-Za-z_]\w*$"


def editor_schema(plugins: Iterable[type[Plugin]]) -> Schema:
    """Return the JSON Schema (2020-12) of a configuration that may use ``plugins`` or plugin files.

    Invalid classes, which no configuration can use, are left out.
    """
    sound = (plugin for plugin in plugins if not check_plugin_class(plugin))
    by_type = {plugin.type: plugin for plugin in sorted(sound, key=lambda each: each.type)}
    by_type |= {old: by_type[new] for old, new in OLD_TYPES.items() if new in by_type}
    structs: dict[type[msgspec.Struct], None] = {}
    for struct in (ConfigFile, *map(params_of, by_type.values())):
        _add_structs(struct, structs)
    refs, definitions = msgspec.json.schema_components(
        list(structs), schema_hook=lambda _: {}, ref_template=_REF
    )
    names = {
        struct: ref["$ref"].removeprefix(_REF.format(name=""))
        for struct, ref in zip(structs, refs, strict=True)
    }
    for struct, name in names.items():
        _describe(struct, definitions[name])
    _add_plugins(
        definitions[names[PluginEntry]],
        {name: (plugin, names[params_of(plugin)]) for name, plugin in by_type.items()},
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "EndpointPickerConfig",
        "$ref": _REF.format(name=names[ConfigFile]),
        "$defs": definitions,
    }


def _add_structs(wanted: Any, found: dict[type[msgspec.Struct], None]) -> None:  # noqa: ANN401 - any type expression
    """Add all Structs in a type, itself first; types may be recursive."""
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        if wanted in found:
            return
        found[wanted] = None
        for field in msgspec.structs.fields(wanted):
            _add_structs(field.type, found)
    for argument in get_args(wanted):
        _add_structs(argument, found)


def _describe(struct: type[msgspec.Struct], definition: Schema) -> None:
    """Add the docstrings of a Struct and its fields to its schema."""
    if doc := inspect.getdoc(struct):
        definition["description"] = _plain(doc.partition("\n")[0])
    docs = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in docs:
            definition["properties"][field.encode_name]["description"] = _plain(docs[field.name])


def _add_plugins(entry: Schema, plugins: dict[str, tuple[type[Plugin], str]]) -> None:
    """Add the allowed plugin types to an entry of ``plugins``, and the parameters of each."""
    entry["properties"]["type"] = {
        "description": entry["properties"]["type"]["description"],
        "anyOf": [
            {"enum": [*plugins]},
            {"type": "string", "pattern": _FILE_TYPE},
        ],
    }
    entry["allOf"] = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {
                "description": _plain(describe(plugin).summary),
                "properties": {
                    "parameters": {"anyOf": [{"$ref": _REF.format(name=params)}, {"type": "null"}]}
                },
            },
        }
        for name, (plugin, params) in plugins.items()
    ]


def _plain(doc: str) -> str:
    """Return a docstring with Markdown's single backticks for code."""
    return doc.replace("``", "`")
