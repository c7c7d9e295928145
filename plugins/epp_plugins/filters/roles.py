"""Roles of model servers: the stages of a request that a server performs.

A fleet can run the stages of a request on different servers: encoding of images and audio, prefill
of the prompt, decoding of the output. The label ``llm-d.ai/role`` names a server's stages. This
module is the common part of the role filters.
"""

from typing import ClassVar

import msgspec

from epp_plugins.filters import by_label
from epp_plugins.filters.by_label import ByLabelFilter

ROLE_LABEL = "llm-d.ai/role"


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the role filters: none."""


class RoleFilter(ByLabelFilter):
    """Keeps the servers whose role is one of ``roles``."""

    roles: ClassVar[tuple[str, ...]]
    allows_no_role: ClassVar[bool] = False

    def __init__(self, name: str, params: Params) -> None:
        super().__init__(
            name,
            by_label.Params(
                label=ROLE_LABEL, valid_values=self.roles, allows_no_label=self.allows_no_role
            ),
        )
