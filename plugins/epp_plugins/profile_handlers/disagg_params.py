"""Parameters of ``disagg-profile-handler``, in their nested form and the deprecated flat one."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

PluginName = Annotated[str, msgspec.Meta(extra={"refers_to": "plugin"})]
_ORDERS: Final[Mapping[str, Literal["decode-first", "prefill-first"]]] = {
    "": "decode-first",
    "decode": "decode-first",
    "decodefirst": "decode-first",
    "prefill": "prefill-first",
    "prefillfirst": "prefill-first",
}
"""Stage orders by their spelling in lower case, without hyphens and underscores."""


class Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Names of the profiles of the stages."""

    decode: str = "decode"
    """Profile of the destination."""
    prefill: str = "prefill"
    """Profile of the endpoint that computes the prompt."""
    encode: str = "encode"
    """Profile of the endpoints that encode media."""


class Deciders(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Names of the stage deciders."""

    prefill: PluginName = ""
    """Decider of the prefill stage; "" turns it off with ``decode-first``."""
    encode: PluginName = ""
    """Decider of the encode stage; "" turns it off."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``disagg-profile-handler``."""

    stage_order: str = "decode-first"
    """``decode-first`` or ``prefill-first``."""
    profiles: Profiles | None = None
    """Names of the profiles; by default the names of the stages."""
    deciders: Deciders | None = None
    """Names of the deciders; a stage without one is off."""
    joint: Literal["topology"] | None = None
    """``topology`` to choose prefill and decode as a pair; by default independently."""
    topology_producer_name: str = ""
    """Extractor of the topology for ``joint``; "" for ``topology-extractor``."""
    decode_profile: str = ""
    """Deprecated: ``profiles.decode``."""
    prefill_profile: str = ""
    """Deprecated: ``profiles.prefill``."""
    encode_profile: str = ""
    """Deprecated: ``profiles.encode``."""
    prefill_decider_plugin_name: PluginName = ""
    """Deprecated: ``deciders.prefill``."""
    decider_plugin_name: PluginName = ""
    """Deprecated: ``deciders.prefill``, used if ``prefillDeciderPluginName`` is not set."""
    encode_decider_plugin_name: PluginName = ""
    """Deprecated: ``deciders.encode``."""

    def __post_init__(self) -> None:
        if (self.profiles or self.deciders) and (flat := self._flat()):
            raise ValueError(
                f"profiles and deciders do not go with the deprecated {', '.join(flat)}: write"
                " all of them under profiles and deciders"
            )
        order = self.order
        names, decider = self.stage_profiles(), self.stage_deciders().prefill
        taken = [names.decode, names.prefill, names.encode]
        if len(set(taken)) < len(taken):
            raise ValueError(
                f"decode, prefill and encode have the profiles {names.decode!r},"
                f" {names.prefill!r} and {names.encode!r}: give each a profile of its own"
            )
        if order == "prefill-first" and decider:
            raise ValueError(
                "stageOrder prefill-first runs the prefill of every request and asks no decider:"
                f" remove prefill decider {decider!r}, or use stageOrder decode-first"
            )
        if self.joint and order == "decode-first" and not decider:
            raise ValueError(
                "joint pairs prefill with decode, and no prefill ever runs: set deciders.prefill,"
                " or stageOrder prefill-first"
            )

    @property
    def order(self) -> Literal["decode-first", "prefill-first"]:
        """The stage order in its canonical spelling."""
        order = _ORDERS.get(self.stage_order.lower().replace("-", "").replace("_", ""))
        if order is None:
            raise ValueError(
                f"stageOrder is {self.stage_order!r}; write decode-first or prefill-first"
            )
        return order

    def stage_profiles(self) -> Profiles:
        """Return the names of the profiles, from either form of the parameters."""
        given = self.profiles or Profiles(
            self.decode_profile, self.prefill_profile, self.encode_profile
        )
        return Profiles(
            given.decode or "decode", given.prefill or "prefill", given.encode or "encode"
        )

    def stage_deciders(self) -> Deciders:
        """Return the names of the deciders, from either form of the parameters."""
        return self.deciders or Deciders(
            self.prefill_decider_plugin_name or self.decider_plugin_name,
            self.encode_decider_plugin_name,
        )

    def _flat(self) -> list[str]:
        names = {
            "decodeProfile": self.decode_profile,
            "prefillProfile": self.prefill_profile,
            "encodeProfile": self.encode_profile,
            "prefillDeciderPluginName": self.prefill_decider_plugin_name,
            "deciderPluginName": self.decider_plugin_name,
            "encodeDeciderPluginName": self.encode_decider_plugin_name,
        }
        return [name for name, value in names.items() if value]
