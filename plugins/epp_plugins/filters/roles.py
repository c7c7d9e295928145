"""The roles of model servers: which stages of a request one does, by its label ``llm-d.ai/role``.

A fleet may serve the stages of a request on different servers: encoding of images and sound,
prefill of the prompt, decoding of the answer. What the role filters have in common is here.
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
