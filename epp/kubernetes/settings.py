"""The operator's settings of discovery from the Kubernetes API."""

from dataclasses import dataclass
from typing import Annotated

from epp.inputs import Form, Option, Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Which pods are the endpoints: those of one or more pools, or those with some labels."""

    pool_name: Annotated[
        tuple[str, ...],
        Option(
            "The InferencePool whose pods are the model servers; repeat it to serve several. With"
            " other endpoints, the name of the pool in metrics.",
            panel=Panel.KUBERNETES,
            metavar="NAME",
        ),
    ] = ()
    all_pools: Annotated[
        bool,
        Option(
            "Serve all InferencePools of the namespace.", panel=Panel.KUBERNETES, form=Form.SWITCH
        ),
    ] = False
    pool_namespace: Annotated[
        str,
        Option(
            "Namespace of the pool and its pods; by default that of the variable NAMESPACE, or"
            " `default`.",
            panel=Panel.KUBERNETES,
            metavar="NAME",
        ),
    ] = ""
    pool_group: Annotated[
        str,
        Option(
            "API group of the InferencePool, and of the poolRef of objectives and rewrites.",
            panel=Panel.KUBERNETES,
            metavar="GROUP",
        ),
    ] = "inference.networking.k8s.io"
    endpoint_selector: Annotated[
        str,
        Option(
            "Instead of a pool: label selector of the pods that are model servers, such as"
            " `app=vllm`.",
            panel=Panel.KUBERNETES,
            metavar="SELECTOR",
        ),
    ] = ""
    endpoint_target_ports: Annotated[
        str,
        Option(
            "With --endpoint-selector: ports of the model servers in each pod, separated by"
            " commas.",
            panel=Panel.KUBERNETES,
            metavar="PORTS",
        ),
    ] = ""
