"""Checks of dynamic metadata between Envoy and the endpoint picker, in both directions."""

from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import override_host, reads_header
from epp.doctor.findings import Finding, error, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import NAMESPACE, SUBSET_NAMESPACE
from epp.doctor.routes import RouteUse

_SERVED_KEY = {"key": NAMESPACE, "path": [{"key": "x-gateway-destination-endpoint-served"}]}
_HEADER_TO_METADATA = "envoy.extensions.filters.http.header_to_metadata.v3.Config"


def _receiving(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        place = use.get("metadata_options", "receiving_namespaces", "untyped")
        if NAMESPACE in place.texts():
            continue
        pool = gateway.pool_of(use)
        by_header = reads_header(pool) if pool else True
        level = warning if by_header else error
        yield level(
            place.path,
            f"the EPP's metadata in {NAMESPACE} is dropped",
            "The destination header is all that Envoy has of the pick"
            if by_header
            else "The model servers' cluster reads the destination there: no pick is followed",
            f"Set metadata_options.receiving_namespaces.untyped: [{NAMESPACE}]",
            set_to(place.path, [*place.texts(), NAMESPACE]),
        )


def _forwarding(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        place = use.get("metadata_options", "forwarding_namespaces", "untyped")
        given = place.texts()
        mend = "Set metadata_options.forwarding_namespaces.untyped:"
        mend += f" [{NAMESPACE}, {SUBSET_NAMESPACE}]"
        fix = set_to(place.path, list(dict.fromkeys((*given, NAMESPACE, SUBSET_NAMESPACE))))
        if NAMESPACE not in given:
            yield warning(
                place.path,
                f"{NAMESPACE} is not sent to the EPP",
                "It never learns which endpoint served: after a retry the load of the request is"
                " counted at the wrong one",
                mend,
                fix,
            )
        if SUBSET_NAMESPACE not in given and _writes_subset(use):
            yield error(
                place.path,
                f"a header_to_metadata filter writes {SUBSET_NAMESPACE}, but it is not sent to"
                " the EPP",
                "Requests go to endpoints outside the subset",
                mend,
                fix,
            )
        elif SUBSET_NAMESPACE not in given:
            yield note(
                place.path,
                f"{SUBSET_NAMESPACE} is not sent to the EPP: needed only where something narrows"
                " the endpoints of a request",
            )


def _writes_subset(use: RouteUse) -> bool:
    for item in use.manager.filters:
        config = item.typed_config()
        if config.type_name() == _HEADER_TO_METADATA:
            for rule in config.unwrapped().get("request_rules").items():
                for when in ("on_header_present", "on_header_missing"):
                    if rule.get(when, "metadata_namespace").text() == SUBSET_NAMESPACE:
                        return True
    return False


def _served(gateway: Gateway) -> Iterator[Finding]:
    for pool in gateway.pools.values():
        policy = override_host(pool)
        if policy and not policy.get("selected_host_key"):
            yield warning(
                policy.get("selected_host_key").path,
                "selected_host_key is not set",
                "Nobody notes which endpoint served: after a retry, or for an endpoint that Envoy"
                " does not know, the EPP counts the request at the wrong one",
                f"Set selected_host_key: {{key: {NAMESPACE}, path:"
                " [{key: x-gateway-destination-endpoint-served}]}",
                set_to(policy.get("selected_host_key").path, _SERVED_KEY),
            )


CHECKS = (
    Check("receiving-namespaces", _receiving, "Envoy takes the EPP's metadata"),
    Check("forwarding-namespaces", _forwarding, "the EPP is sent the metadata it reads"),
    Check("served-endpoint", _served, "Envoy notes which endpoint served"),
)
