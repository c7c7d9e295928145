import pytest

from epp.testing import (
    make_endpoint,
    make_plugin,
    make_profile,
    make_request,
    run_filter,
    run_profile,
)
from epp_plugins.filters.decode import DecodeFilter
from epp_plugins.filters.encode import EncodeFilter
from epp_plugins.filters.prefill import PrefillFilter
from epp_plugins.filters.roles import RoleFilter

ROLES = [
    "decode",
    "prefill",
    "encode",
    "prefill-decode",
    "both",
    "encode-prefill",
    "encode-prefill-decode",
    "something-else",
]
ENDPOINTS = [
    *(make_endpoint(role, labels={"llm-d.ai/role": role}) for role in ROLES),
    make_endpoint("no-role", labels={"role": "decode"}),
]


@pytest.mark.parametrize(
    ("plugin", "want"),
    [
        pytest.param(
            DecodeFilter,
            ["decode", "prefill-decode", "both", "encode-prefill-decode", "no-role"],
            id="decode, or no role",
        ),
        pytest.param(
            PrefillFilter,
            ["prefill", "prefill-decode", "both", "encode-prefill", "encode-prefill-decode"],
            id="prefill",
        ),
        pytest.param(
            EncodeFilter, ["encode", "encode-prefill", "encode-prefill-decode"], id="encode"
        ),
    ],
)
def test_filter(plugin: type[RoleFilter], want: list[str]) -> None:
    assert run_filter(make_plugin(plugin), make_request(), ENDPOINTS) == want
    assert run_profile(make_profile(filters=[make_plugin(plugin)]), make_request(), ENDPOINTS) == (
        want
    )
    assert not plugin.fails_open


def test_role_filters_have_no_parameters() -> None:
    with pytest.raises(ValueError, match="unknown field `label`"):
        make_plugin(DecodeFilter, {"label": "mine"})
