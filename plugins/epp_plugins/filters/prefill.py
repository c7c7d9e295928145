"""``prefill-filter``: keeps the servers that prefill.

It keeps servers whose label ``llm-d.ai/role`` is ``prefill``, ``encode-prefill``,
``prefill-decode``, ``both`` or ``encode-prefill-decode``. It removes servers without that label.

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: prefill-filter
"""

from typing import ClassVar

from epp_plugins.filters.roles import RoleFilter


class PrefillFilter(RoleFilter):
    """Keeps the servers that prefill."""

    type: ClassVar[str] = "prefill-filter"
    roles: ClassVar[tuple[str, ...]] = (
        "prefill",
        "encode-prefill",
        "prefill-decode",
        "both",
        "encode-prefill-decode",
    )
