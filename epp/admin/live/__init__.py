"""The feed of the live page: the state of one pool, once a second, while a viewer is connected.

Each second :class:`LiveSource` reads the pool on the main event loop (a few plain values of each
endpoint) and passes them to the thread of the metrics port, which computes rates, names problems
and encodes the changes.
"""

from epp.admin.live.page_files import page_files
from epp.admin.live.pool_reader import ConfigReading, PoolReader
from epp.admin.live.source import LiveSource

__all__ = ["ConfigReading", "LiveSource", "PoolReader", "page_files"]
