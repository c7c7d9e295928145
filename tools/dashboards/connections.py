"""Connections and streams of a process: a row of the dashboard Process."""

from typing import Final

from tools.dashboards.model import Panel, Query, Row, Threshold
from tools.dashboards.queries import PROCESS, highest, lowest, rate, select, total

_EACH: Final = "{{instance}}"
_TRANSPORT: Final = "llm_d_epp_transport_"


def _each(expr: str) -> Query:
    return Query(expr, _EACH)


CONNECTIONS: Final = Row(
    "Connections of Envoy and others",
    (
        Panel(
            title="ext_proc streams",
            description="One stream for each request in progress; by process.",
            queries=(_each(select(f"{_TRANSPORT}streams", PROCESS)),),
            unit="none",
        ),
        Panel(
            title="Streams opened",
            description="New ext_proc streams a second.",
            queries=(_each(rate(f"{_TRANSPORT}streams_total", PROCESS)),),
            unit="reqps",
        ),
        Panel(
            title="Streams that ended before their time",
            description="By reason. client_reset: Envoy gave the request up, mostly as its client"
            " left.",
            queries=(
                Query(
                    total(rate(f"{_TRANSPORT}streams_broken_off_total", PROCESS), "reason"),
                    "{{reason}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            title="Refused or held back",
            description="By limit or rule; docs/transport.md has the setting for each.",
            queries=(
                Query(
                    total(rate(f"{_TRANSPORT}refused_total", PROCESS), "what"), "refused {{what}}"
                ),
                Query(
                    total(rate(f"{_TRANSPORT}held_back_total", PROCESS), "what"),
                    "held back {{what}}",
                ),
                Query(
                    total(rate(f"{_TRANSPORT}connections_ended_total", PROCESS), "reason"),
                    "connections ended {{reason}}",
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Connections by port",
            description="Open connections and the limit of each port, of the process with the"
            " most.",
            queries=(
                Query(highest(select("llm_d_epp_port_connections", PROCESS), "port"), "{{port}}"),
                Query(
                    highest(select("llm_d_epp_port_connections_limit", PROCESS), "port"),
                    "limit {{port}}",
                ),
            ),
            unit="none",
        ),
        Panel(
            title="Certificate expires",
            description="Time left to the certificate in use, with --cert-path. A new one is used"
            " as soon as its files are there.",
            queries=(
                Query(
                    lowest(
                        select(f"{_TRANSPORT}certificate_expiry_timestamp_seconds", PROCESS)
                        + " - time()",
                        "instance",
                    ),
                    _EACH,
                ),
            ),
            unit="s",
            thresholds=(Threshold(7 * 86400, "green"),),
            minimum=None,
            low_is_bad=True,
        ),
        Panel(
            title="Buffers",
            description="Responses that wait for Envoy to read, and messages that are not whole.",
            queries=(_each(select(f"{_TRANSPORT}buffered_bytes", PROCESS)),),
            unit="bytes",
        ),
        Panel(
            title="Header blocks from the cache",
            description="Part of the header blocks that need not be decoded. Low values cost CPU.",
            queries=(
                _each(
                    rate(f"{_TRANSPORT}header_cache_hits_total", PROCESS)
                    + " / ("
                    + rate(f"{_TRANSPORT}header_cache_hits_total", PROCESS)
                    + " + "
                    + rate(f"{_TRANSPORT}header_cache_misses_total", PROCESS)
                    + " > 0)"
                ),
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Length of the metrics page",
            description="Beyond the limit, names of models and tenants count as other.",
            queries=(
                _each(select("llm_d_epp_metrics_page_bytes", PROCESS)),
                Query(highest(select("llm_d_epp_metrics_page_limit_bytes", PROCESS)), "limit"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Names that count as other",
            description="How often names of models or tenants got no series of their own.",
            queries=(_each(rate("llm_d_epp_metrics_names_folded_total", PROCESS)),),
            unit="cps",
        ),
    ),
)
