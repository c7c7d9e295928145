"""``decode-filter``: keeps the servers that decode.

It keeps servers whose label ``llm-d.ai/role`` is ``decode``, ``prefill-decode``, ``both`` or
``encode-prefill-decode``, and those without that label.

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: decode-filter
"""

from typing import ClassVar

from epp_plugins.filters.roles import RoleFilter


class DecodeFilter(RoleFilter):
    """Keeps the servers that decode; one without a role counts as one."""

    type: ClassVar[str] = "decode-filter"
    roles: ClassVar[tuple[str, ...]] = ("decode", "prefill-decode", "both", "encode-prefill-decode")
    allows_no_role: ClassVar[bool] = True
