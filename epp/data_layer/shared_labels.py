"""One object for equal labels: the pods of a Deployment all have the same ones.

A dict of six labels takes 1 KB. Labels are kept while something refers to them.
"""

from collections.abc import Mapping
from sys import intern
from weakref import WeakValueDictionary


class _Labels(dict[str, str]):
    __slots__ = ("__weakref__",)


_known: "WeakValueDictionary[int, _Labels]" = WeakValueDictionary()
"""By hash; of two labels with the same one, the latest."""


def share_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return a copy of ``labels``: the same object for equal ones. It must not be changed."""
    if isinstance(labels, _Labels):
        return labels
    key = hash(frozenset(labels.items()))
    known = _known.get(key)
    if known is None or known != labels:
        known = _known[key] = _Labels(
            (intern(name), intern(value)) for name, value in labels.items()
        )
    return known
