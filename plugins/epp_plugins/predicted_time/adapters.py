"""Which LoRA adapters a server is believed to have loaded.

Its pages name the adapters of running and waiting requests, but not those that are loaded and idle.
Servers keep the adapters used last, so the model keeps as many of those sent there.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

_MOST_KNOWN: Final = 10_000
"""Names of adapters that are kept, those named last."""


class KnownAdapters:
    """The models that pages have named as adapters; others are base models."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, model: str) -> bool:
        return model in self._names

    def named(self, adapters: Iterable[str]) -> None:
        """Note the names of a page."""
        for adapter in adapters:
            _note_use(self._names, adapter, _MOST_KNOWN)


class LoadedAdapters:
    """The adapters of one server."""

    __slots__ = ("_loaded", "most")

    def __init__(self) -> None:
        self._loaded: OrderedDict[str, None] = OrderedDict()
        """Those used last are at the end."""
        self.most = 0
        """Adapters that fit at once; 0 if the server serves none, or is not known to."""

    def page(self, most: int, in_use: Iterable[str]) -> None:
        """Learn from a page how many fit, and which are in use."""
        self.most = most
        for adapter in in_use:
            self.use(adapter)

    def use(self, adapter: str) -> None:
        """Note a request with an adapter."""
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
