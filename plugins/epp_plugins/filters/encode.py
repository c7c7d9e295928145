"""``encode-filter``: keeps the servers that encode images, audio and video.

It keeps servers whose label ``llm-d.ai/role`` is ``encode``, ``encode-prefill`` or
``encode-prefill-decode``. It removes servers without that label.

Reads:  ``endpoint.labels``.
Example::

    plugins:
      - type: encode-filter
"""

from typing import ClassVar

from epp_plugins.filters.roles import RoleFilter


class EncodeFilter(RoleFilter):
    """Keeps the servers that encode."""

    type: ClassVar[str] = "encode-filter"
    roles: ClassVar[tuple[str, ...]] = ("encode", "encode-prefill", "encode-prefill-decode")
