"""Checks that Envoy calls the endpoint picker and applies its responses."""

from collections import Counter
from collections.abc import Iterator

from epp.doctor.check import Check
from epp.doctor.clusters import is_original_dst, reads_header
from epp.doctor.envoy_checks.headers import removed_before
from epp.doctor.findings import Finding, error, note, set_to, warning
from epp.doctor.gateway import Gateway
from epp.doctor.names import DESTINATION
from epp.doctor.routes import EXT_PROC, ROUTER, Manager

_RETRY_ON = "connect-failure,refused-stream,reset-before-request"


def _missing(gateway: Gateway) -> Iterator[Finding]:
    if not gateway.uses:
        yield error(
            "http_filters",
            "no route has an ext_proc filter that is on, or not the one asked for",
            "Nobody picks an endpoint",
            "Put envoy.filters.http.ext_proc before the router, or look at the Envoy that has it",
        )
    for manager in gateway.managers:
        if manager.missing_table and _has_ext_proc(manager):
            yield warning(
                manager.node.get("rds").path,
                f"the routes ({manager.missing_table}) are not in this source",
                "Timeouts, retries and the model servers' clusters were not looked at",
                "Give --admin, or a file of /config_dump instead of the bootstrap",
            )


def _bypassed(gateway: Gateway) -> Iterator[Finding]:
    """Check routes that bypass the EPP."""
    for manager, target in gateway.bypasses:
        cluster = gateway.clusters.get(target.cluster)
        anywhere = cluster is not None and is_original_dst(cluster) and reads_header(cluster)
        if anywhere and DESTINATION not in removed_before(manager, None):
            yield error(
                target.route.path,
                f"no ext_proc here, and the cluster {target.cluster} goes wherever a header says",
                "A client that sends the header reaches any address: an open proxy",
                f"Turn ext_proc on for this route, or remove {DESTINATION} with"
                " early_header_mutation_extensions",
            )
        elif target.cluster in gateway.pools:
            yield warning(
                target.route.path,
                f"no ext_proc here, but the route leads to the cluster {target.cluster}, too",
                "These requests are placed without the EPP, which does not count them",
                "Take the disabled of ext_proc off this route's typed_per_filter_config",
            )


def _out_of_order(gateway: Gateway) -> Iterator[Finding]:
    for manager in gateway.managers:
        behind = False
        for item in manager.filters:
            name = item.typed_config().type_name()
            behind = behind or name == ROUTER
            if behind and name == EXT_PROC:
                yield error(
                    item.path,
                    "ext_proc stands behind the router",
                    "The router ends the chain: Envoy refuses this, and nobody would be asked",
                    "Make envoy.filters.http.router the last of http_filters",
                )


def _several(gateway: Gateway) -> Iterator[Finding]:
    filters = Counter(id(use.target) for use in gateway.uses if use.target is not None)
    for use in gateway.uses:
        if filters[id(use.target)] > 1:
            yield note(
                use.filter.path,
                "one of several ext_proc filters on a route; all were looked at. Name the EPP's"
                " with --ext-proc if another one is reported",
            )


def _observing(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.config.get("observability_mode").flag():
            yield error(
                use.config.get("observability_mode").path,
                "observability_mode is on",
                "Envoy does not wait and drops the replies: nothing that the EPP picks counts",
                "Set observability_mode: false",
                set_to(use.config.get("observability_mode").path, False),
            )


def _muted(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.config.get("disable_immediate_response").flag():
            yield error(
                use.config.get("disable_immediate_response").path,
                "disable_immediate_response is on",
                "The EPP's refusals (400, 413, 429, 503) do not reach the client",
                "Set disable_immediate_response: false",
                set_to(use.config.get("disable_immediate_response").path, False),
            )


def _restrained(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        rules = use.config.get("mutation_rules")
        if rules.get("disallow_all").flag():
            yield error(
                rules.get("disallow_all").path,
                "the EPP may change no header",
                "The destination header is dropped, and with disallow_is_error the request fails",
                "Set mutation_rules.disallow_all: false",
                set_to(rules.get("disallow_all").path, False),
            )
        if rules.get("disallow_expression"):
            yield warning(
                rules.get("disallow_expression").path,
                "headers that match an expression are not changed",
                f"If it matches {DESTINATION} or a stage's header, the pick is lost",
                "Name those in mutation_rules.allow_expression",
            )
        if use.config.get("forward_rules"):
            yield warning(
                use.config.get("forward_rules").path,
                "only some headers are sent to the EPP",
                "It needs :path, :method, content-type, content-length, x-request-id and the"
                " x-llm-d- and x-gateway- headers",
                "Take forward_rules out, or allow these",
            )


def _alone(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        service = use.get("grpc_service")
        if service.get("envoy_grpc") and not service.get("retry_policy", "retry_on").text():
            yield note(
                service.get("retry_policy").path,
                "no retry_policy for the streams: where there are several EPPs, requests fail that"
                " meet one which has stopped, as Envoy does not learn of it without health checks."
                f" Set retry_policy: {{retry_on: '{_RETRY_ON}', num_retries: 2}} with the"
                " retry_host_predicate previous_hosts",
            )


def _has_ext_proc(manager: Manager) -> bool:
    return any(item.typed_config().type_name() == EXT_PROC for item in manager.filters)


CHECKS = (
    Check("picker", _missing, "requests pass an ext_proc filter"),
    Check("picker-bypassed", _bypassed, "no route goes to the model servers without the EPP"),
    Check("picker-order", _out_of_order, "ext_proc stands before the router"),
    Check("several-ext-procs", _several, "one ext_proc filter on each route"),
    Check("observability-mode", _observing, "Envoy waits for the replies"),
    Check("immediate-response", _muted, "refusals of the EPP reach the client"),
    Check("epp-retries", _alone, "a stream that meets a stopped EPP is tried with another"),
    Check("header-rules", _restrained, "all headers go to the EPP, and it may set its own"),
)
