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
    """Scheduling profile of each stage."""

    decode: str = "decode"
    """Profile that picks the endpoint to which the request is sent."""
    prefill: str = "prefill"
    """Profile that picks the endpoint that prefills the prompt."""
    encode: str = "encode"
    """Profile that picks the endpoints that encode media."""


class Deciders(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Plugins that decide for each request whether a stage runs."""

    prefill: PluginName = ""
    """Decides whether a request gets a prefill stage; "" for never. With ``prefill-first``, which
    prefills every request, it must be ""."""
    encode: PluginName = ""
    """Decides whether a request gets an encode stage; "" for never."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``disagg-profile-handler``."""

    stage_order: str = "decode-first"
    """Which endpoint is picked first: ``decode-first`` or ``prefill-first``, which also prefills
    every request."""
    profiles: Profiles | None = None
    """Scheduling profile of each stage; by default the one with the name of the stage."""
    deciders: Deciders | None = None
    """Plugins that decide whether the prefill and encode stages run."""
    joint: Literal["topology"] | None = None
    """``topology`` picks the prefill and the decode endpoint as a pair; by default each is picked
    on its own."""
    topology_producer_name: str = ""
    """Plugin that provides the topology for ``joint``; "" for ``topology-extractor``."""
    decode_profile: str = ""
    """Deprecated; use ``profiles.decode``."""
    prefill_profile: str = ""
    """Deprecated; use ``profiles.prefill``."""
    encode_profile: str = ""
    """Deprecated; use ``profiles.encode``."""
    prefill_decider_plugin_name: PluginName = ""
    """Deprecated; use ``deciders.prefill``."""
    decider_plugin_name: PluginName = ""
    """Deprecated; use ``deciders.prefill``. Ignored if ``prefillDeciderPluginName`` is set."""
    encode_decider_plugin_name: PluginName = ""
    """Deprecated; use ``deciders.encode``."""

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
                f"decode, prefill and encode use the profiles {names.decode!r},"
                f" {names.prefill!r} and {names.encode!r}: each stage needs a profile of its own"
            )
        if order == "prefill-first" and decider:
            raise ValueError(
                "stageOrder prefill-first prefills every request, so a prefill decider has no"
                f" effect: remove prefill decider {decider!r}, or use stageOrder decode-first"
            )
        if self.joint and order == "decode-first" and not decider:
            raise ValueError(
                "joint needs a prefill stage, and none ever runs: set deciders.prefill,"
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
