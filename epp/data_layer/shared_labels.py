"""Shares one object among equal label sets, such as those of the pods of a Deployment.

A dict of six labels takes 1 KB. A label set is kept while something refers to it.
"""

from collections.abc import Mapping
from sys import intern
from weakref import WeakValueDictionary


class _Labels(dict[str, str]):
    __slots__ = ("__weakref__",)


_known: "WeakValueDictionary[int, _Labels]" = WeakValueDictionary()
"""By hash; of two label sets with the same hash, the newer one."""


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
