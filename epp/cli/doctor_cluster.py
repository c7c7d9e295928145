"""Queries a Kubernetes cluster for ``epp doctor``."""

from epp.cli.doctor_options import ServeOptions
from epp.config import PluginGraph
from epp.data_layer import ObjectListener
from epp.doctor.cluster import ClusterView
from epp.kubernetes.source import PodSource, PoolsSource


async def ask_cluster(
    source: PodSource | PoolsSource,
    options: ServeOptions,
    graph: PluginGraph | None,
    *,
    reviews_tokens: bool,
    account: str,
) -> ClusterView:
    """Return a cluster's kinds and rights, of those that ``epp serve`` needs with these options.

    Raises:
        ImportError: The extra ``kubernetes`` is not installed; the text says how to install it.
    """
    # Imported late: Kubernetes is an extra.
    from epp.doctor.cluster.asking import ask  # noqa: PLC0415
    from epp.doctor.cluster.rights import ClusterUse  # noqa: PLC0415
    from epp.kubernetes.api import ConfigurationError, load_connection  # noqa: PLC0415

    listeners = () if graph is None else graph.implementing(ObjectListener)
    use = ClusterUse(
        source=source,
        has_policies=not options.values["objects"],
        writes_status=options.values["writes_object_status"],
        elects_leader=options.values["elects_leader"],
        reviews_tokens=reviews_tokens,
        objects=tuple(
            {
                each.object_kind: each.needs_objects
                for each in listeners
                if each.object_kind is not None
            }.items()
        ),
    )
    try:
        connection = load_connection()
    except ConfigurationError as error:
        return ClusterView(server="", account=account, fault=str(error))
    return await ask(connection, use, account)
