"""Loading any text gives a configuration, or an error with place and reason."""

from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.config import ConfigError, LoadedConfig, load_text
from epp.config.document import parse
from epp.config.schema import KIND
from epp.config.yaml_nodes import dump

WORDS = st.sampled_from(
    [
        "apiVersion", "kind", "plugins", "type", "name", "parameters", "schedulingProfiles",
        "pluginRef", "weight", "dataLayer", "sources", "extractors", "discovery", "featureGates",
        "flowControl", "priorityBands", "maxBytes", "requestHandler", "parsers", "parser",
        "saturationDetector", "extensions", "shadow", "profile", "guardRails", "failurePolicy",
        "sessions", "actions", "allocate", "arguments", "enabled", "priority",
        "openai-parser", "utilization-detector", "flowControl=true", "open", "10Gi", "60s",
        "llm-d.ai/v1alpha1", KIND, "default", "queue-scorer", "x",
    ]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=30,
)
FRAGMENTS = st.lists(
    st.sampled_from(
        ["a", "b: ", "- ", "? ", "[", "]", "{", "}", ", ", "&x ", "*x", "<<: ", "!!int ", "!!set ",
         "!t ", "'", '"', "\\U00110000", "|\n", ">-\n", "---\n", "...\n", "%YAML 1.2\n", "\n", "  ",
         "\t", "#", "0x", "1e999", ".nan", "2024-99-99", "\x00", "\ud800", "\x85", "é"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


def loaded(text: str) -> LoadedConfig | None:
    """Load ``text``; if it is refused, check that the refusal is of use."""
    try:
        return load_text(text, "f")
    except ConfigError as error:
        refusal = error
    assert refusal.problems
    for problem in refusal.problems:
        assert problem.message
        assert 0 <= problem.line <= len(text.splitlines()) + 1
    assert str(refusal) == "\n".join(problem.text("f") for problem in refusal.problems)
    return None


@given(st.text() | FRAGMENTS)
def test_any_text_is_loaded_or_refused(text: str) -> None:
    loaded(text)


@given(st.dictionaries(WORDS, VALUES, max_size=6))
@settings(max_examples=150)
def test_any_mapping_is_loaded_or_refused(value: dict[str, Any]) -> None:
    head = {"apiVersion": "llm-d.ai/v1alpha1", "kind": KIND}
    config = loaded(yaml.safe_dump({**head, **value}, allow_unicode=True))
    if config is not None:
        assert all(plugin.name for plugin in config.file.plugins)
        assert config.problem("plugins[0].parameters", "x").line > 0


@given(VALUES)
@example({"\x85": "\u2028", "a\u2029b": ["\x85"]})
def test_what_is_dumped_is_read_back(value: object) -> None:
    document = parse(dump(value))
    if not document.problems:  # integers beyond 64 bits are refused
        assert repr(document.root.value) == repr(value)
    else:
        assert {problem.message for problem in document.problems} == {"a number beyond 64 bits"}
