"""Fixes of a file set the value and leave everything else unchanged."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.doctor import Gateway, Level, examine_envoy, read_text
from epp.doctor.fixes import Fixed, FixError, fixed_field, mend
from epp.lab.envoy import validate

from .test_real_envoy import make_trapped

TEXT = """\
# The gateway.
static_resources:
  clusters:
  - name: epp  # who decides
    type: STATIC
    http2_protocol_options: {}
  - {name: pool, connect_timeout: 1s}
  - name: other
    typed:
      "@type": a.b/C
      note: |
        two
        lines
admin:
  address:
    # Only here.
    socket_address: {address: 0.0.0.0, port_value: 9901}
"""


def changed_lines(path: str, value: str | None, text: str = TEXT) -> list[str]:
    """The lines of the text that are new, in order."""
    before = text.splitlines()
    return [line for line in fixed_field(text, path, value).splitlines() if line not in before]


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        pytest.param(
            "clusters[epp].type", '"EDS"', ["    type: EDS"], id="a value with a name before it"
        ),
        pytest.param(
            "clusters[epp].connect_timeout",
            '"2s"',
            ["    connect_timeout: 2s"],
            id="a field behind the last one of a block",
        ),
        pytest.param(
            "clusters[pool].type",
            '"EDS"',
            ["  - {type: EDS, name: pool, connect_timeout: 1s}"],
            id="a field of a mapping in braces",
        ),
        pytest.param(
            "clusters[epp].http2_protocol_options.initial_stream_window_size",
            "65536",
            ["    http2_protocol_options: {initial_stream_window_size: 65536}"],
            id="the first field of an empty mapping",
        ),
        pytest.param(
            "clusters[other].typed.depth.deeper",
            "[1]",
            ["      depth:", "        deeper:", "        - 1"],
            id="mappings around it, behind a text of several lines",
        ),
        pytest.param(
            "admin.address.socket_address.address",
            '"127.0.0.1"',
            ["    socket_address: {address: 127.0.0.1, port_value: 9901}"],
            id="a value in braces",
        ),
        pytest.param(
            "clusters[pool].connect_timeout", None, ["  - {name: pool}"], id="removed from braces"
        ),
        pytest.param("clusters[epp].type", None, [], id="removed with its line"),
        pytest.param(
            "clusters[epp].name", None, ["  - type: STATIC"], id="removed from the line of a dash"
        ),
    ],
)
def test_one_field_changes(path: str, value: str | None, lines: list[str]) -> None:
    assert changed_lines(path, value) == lines
    changed = fixed_field(TEXT, path, value)
    assert "# The gateway." in changed
    assert "# Only here." in changed
    assert yaml.safe_load(changed) != yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        pytest.param("a: &x {b: 1}\nc: *x\n", "c.b", "an alias", id="an alias"),
        pytest.param("x: &x {b: 1}\nc:\n  <<: *x\n", "c.b", "merged", id="a merged mapping"),
        pytest.param("configs: []\n", "clusters[a].type", "no bootstrap", id="a dump"),
        pytest.param("a: [{name: b}, {name: b}]\n", "a[b].c", "named b", id="two of one name"),
        pytest.param("a: [1]\n", "a[3].c", "no such list", id="an item that is not there"),
        pytest.param("a: [\n", "a", "unusual form", id="no YAML"),
        pytest.param("", "a", "empty", id="nothing"),
    ],
)
def test_what_cannot_be_changed_says_why(text: str, path: str, message: str) -> None:
    with pytest.raises(FixError, match=message):
        fixed_field(text, path, "1")


KEYS = st.text("abcxyz", min_size=1, max_size=4)
SCALARS = st.one_of(
    st.integers(-9, 99), st.booleans(), st.text("ab: #'\"{}[]\n", max_size=6), st.just("0s")
)
DOCUMENTS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)
WRITERS = st.sampled_from(
    [
        lambda value: yaml.safe_dump(value, sort_keys=False),
        lambda value: yaml.safe_dump(value, default_flow_style=True),
        json.dumps,
        lambda value: json.dumps(value, indent=2),
    ]
)


@settings(max_examples=50)
@given(document=DOCUMENTS, write=WRITERS, path=st.lists(KEYS, min_size=1, max_size=3), new=SCALARS)
def test_a_change_leaves_all_other_values(
    document: dict[str, Any], write: Any, path: list[str], new: object
) -> None:
    text = write(document)
    expected, place = yaml.safe_load(text), None
    place = expected
    for step in path[:-1]:
        if not isinstance(place, dict) or not isinstance(place.setdefault(step, {}), dict):
            return  # a list or a scalar is in the way
        place = place[step]
    place[path[-1]] = new
    try:
        changed = fixed_field(text, ".".join(path), json.dumps(new))
    except FixError:
        return
    assert yaml.safe_load(changed) == expected
    if write(document).startswith("{") and '"' in text[:2]:
        assert json.loads(changed) == expected


def fixed(text: str) -> Fixed:
    return mend(
        text, lambda changed: examine_envoy(Gateway(read_text(changed, "it"))), is_config=False
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda value: yaml.safe_dump(value, sort_keys=False), id="YAML"),
        pytest.param(json.dumps, id="JSON"),
    ],
)
def test_envoy_takes_a_bootstrap_that_was_mended(write: Any) -> None:
    text = write(make_trapped().document)
    result = fixed(text)
    assert result.refused == {}
    assert {row.check for row in result.mended} >= {"route-timeout", "circuit-breakers"}
    # Only the operator knows how many connections there may be.
    assert [row.check for row in result.left] == ["connection-limit"]
    assert all(row.finding.level is not Level.ERROR for row in result.left)
    validate(result.text)


def test_a_mended_file_is_left_as_it_is() -> None:
    once = fixed(yaml.safe_dump(make_trapped().document, sort_keys=False))
    again = fixed(once.text)
    assert again.text == once.text
    assert again.mended == ()
