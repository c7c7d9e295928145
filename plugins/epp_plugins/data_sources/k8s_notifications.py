"""``k8s-notification-source``: notifies its extractors of the Kubernetes objects of one kind.

Its extractors are ``ObjectListener`` plugins of that kind. Each is notified of every object of the
pool's namespace, or of the cluster if the kind has no namespace, and then of every change. A kind
is followed by one watch, however many sources and plugins need it. The watch starts with the
first plugin that reads the kind; a kind that is not installed yet is followed once it is.

The Go EPP requires some plugins to be listed as extractors; here every such plugin is notified,
listed or not, so that ``topology-extractor`` and ``disaggregatedset-rollout-screener`` need no
source. An extractor of another kind is refused.

The endpoint picker needs the rights ``list`` and ``watch`` for the kind; the log names those that
are missing. Without the Kubernetes API, as with endpoints from a file, there are no
objects, and the log says so.

Example::

    plugins:
      - type: k8s-notification-source
        name: pods
        parameters: {version: v1, kind: Pod}
      - type: topology-extractor
    dataLayer:
      sources:
        - pluginRef: pods
          extractors:
            - pluginRef: topology-extractor
"""

from typing import Annotated, ClassVar

import msgspec

from epp.data_layer.plugins import ObjectEvent, ObjectKind, ObjectSource

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``k8s-notification-source``."""

    version: _Text
    """Version of the API group, such as ``v1``."""
    kind: _Text
    """Kind of the objects, such as ``Pod``."""
    group: str = ""
    """API group; "" for the core group."""


class K8sNotificationSource(ObjectSource):
    """Passes every change of the objects of a kind to its extractors."""

    type: ClassVar[str] = "k8s-notification-source"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.object_kind = ObjectKind(params.group, params.version, params.kind)

    def notify_object(self, event: ObjectEvent) -> ObjectEvent:
        return event
