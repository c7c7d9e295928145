"""Which LoRA adapters a server is believed to have loaded.

The server's metrics pages name the adapters of running and waiting requests, but not those that are
loaded and idle. Servers keep the most recently used adapters, so the model keeps the same number of
adapters, those of the latest requests to the server.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

_MOST_KNOWN: Final = 10_000
"""Maximum adapter names kept; those named least recently are dropped."""


class KnownAdapters:
    """The models that metrics pages have named as adapters; others are base models."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, model: str) -> bool:
        return model in self._names

    def named(self, adapters: Iterable[str]) -> None:
        """Record the adapters that a page names."""
        for adapter in adapters:
            _note_use(self._names, adapter, _MOST_KNOWN)


class LoadedAdapters:
    """The adapters of one server."""

    __slots__ = ("_loaded", "most")

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, None] = OrderedDict()
        """In the order of their last use, the latest at the end."""
        self.most = 0
        """Adapters that the server can hold at once; 0 if it serves none or this is unknown."""

    def page(self, most: int, in_use: Iterable[str]) -> None:
        """Record from a page how many adapters fit and which are in use."""
        self.most = most
        for adapter in in_use:
            self.use(adapter)

    def use(self, adapter: str) -> None:
        """Record a request that uses an adapter."""
        _note_use(self._loaded, adapter, self.most)

    def has_to_load(self, adapter: str) -> bool:
        """Return whether a request with the adapter would wait for it to be loaded."""
        return self.most > 0 and adapter not in self._loaded


def _note_use(names: OrderedDict[str, None], name: str, most: int) -> None:
    """Move ``name`` to the end, and keep only the last ``most`` names."""
    names[name] = None
    names.move_to_end(name)
    while len(names) > most:
        names.popitem(last=False)
