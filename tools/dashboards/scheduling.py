"""How endpoints are chosen: time of decisions and plugins, prefix cache, shadow profiles."""

from typing import Final

from tools.dashboards.model import Dashboard, Kind, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    POOL,
    POOLS,
    buckets,
    highest,
    increase,
    mean,
    or_zero,
    percentiles,
    quantile,
    rate,
    select,
    share,
    total,
)

_PLUGIN: Final = ("plugin_name", "extension_point")
_PLUGIN_LEGEND: Final = "{{plugin_name}} {{extension_point}}"
_TIME: Final = "llm_d_epp_plugin_duration_seconds"

_SAMPLED: Final = "llm_d_epp_sampled_decisions_total"

_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Decisions",
            "Attempts to choose an endpoint.",
            total(rate("llm_d_epp_scheduler_attempts_total", POOL)),
            "reqps",
        ),
        number(
            "Failed",
            "Fraction of the attempts that found no endpoint.",
            share(
                total(rate("llm_d_epp_scheduler_attempts_total", POOL, 'status!="success"')),
                total(rate("llm_d_epp_scheduler_attempts_total", POOL)),
            ),
            "percentunit",
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05)),
        ),
        number(
            "Decision, p99",
            "Time of one decision. Microseconds to a millisecond are normal.",
            quantile(0.99, "llm_d_epp_scheduler_e2e_duration_seconds", POOL),
            "s",
            thresholds=(Threshold(0.005, "orange"), Threshold(0.02)),
        ),
        number(
            "Prefix hit, mean",
            "Part of a prompt's blocks that the chosen endpoint holds, by the endpoint picker's own"
            " index.",
            mean("llm_d_epp_prefix_indexer_hit_ratio", POOL),
            "percentunit",
        ),
        number(
            "Plugins disabled",
            "Plugins that failed too often in a row and are not called until a reload.",
            or_zero(total(highest(select("llm_d_epp_plugin_disabled", POOL), "plugin_name"))),
            "none",
            thresholds=(Threshold(1),),
        ),
        number(
            "Slow plugin calls",
            "Calls that took longer than extensions.guardRails.slowCallMs.",
            total(rate("llm_d_epp_plugin_overruns_total", POOL)),
            "cps",
            thresholds=(Threshold(0.01, "orange"),),
        ),
    ),
)
_DECISIONS: Final = Row(
    "Decisions",
    (
        Panel(
            title="Time of a decision",
            description="Filters, scorers and picker of one request, without its wait in queues.",
            queries=percentiles("llm_d_epp_scheduler_e2e_duration_seconds", POOL),
            unit="s",
        ),
        Panel(
            title="Time of a decision, distribution",
            description="How many decisions took how long.",
            queries=(buckets("llm_d_epp_scheduler_e2e_duration_seconds", POOL),),
            unit="s",
            kind=Kind.HEATMAP,
        ),
        Panel(
            title="Attempts by result",
            description="Without an endpoint, the response is 429 or 503, or the request waits.",
            queries=(
                Query(
                    total(rate("llm_d_epp_scheduler_attempts_total", POOL), "status"), "{{status}}"
                ),
            ),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="What decides",
            description="Share of a sample of the decisions: the scorer that puts the winner ahead"
            " of the runner-up, a tie, the picker, or only one candidate.",
            queries=(
                Query(
                    total(rate(_SAMPLED, POOL), "profile", "decided_by", "scorer")
                    + " / on (profile) group_left () "
                    + total(rate(_SAMPLED, POOL), "profile"),
                    "{{profile}} {{decided_by}} {{scorer}}",
                ),
            ),
            unit="percentunit",
            maximum=1,
            is_stacked=True,
        ),
        Panel(
            title="Request until the decision",
            description="From the headers to the decision, with the arrival of the body and the"
            " wait"
            " in flow control.",
            queries=percentiles("llm_d_epp_request_processing_duration_seconds", POOL),
            unit="s",
        ),
        Panel(
            title="Work on a response",
            description="Time spent on all messages of one response.",
            queries=percentiles("llm_d_epp_response_processing_duration_seconds", POOL),
            unit="s",
        ),
        Panel(
            title="Requests in flight, by producer",
            description="What inflight-load-producer counts: requests sent to an endpoint that are"
            " not known to be finished.",
            queries=(
                Query(
                    total(select("llm_d_epp_inflight_requests", POOL), "endpoint_name"),
                    "{{endpoint_name}}",
                ),
            ),
            unit="none",
        ),
    ),
)
_PLUGINS: Final = Row(
    "Plugins",
    (
        Panel(
            title="Where the time goes",
            description="Seconds of work a second, for each plugin and extension point. A value"
            " of 1"
            " is a whole core.",
            queries=(
                Query(
                    "topk(10, " + total(rate(f"{_TIME}_sum", POOL), *_PLUGIN) + ")", _PLUGIN_LEGEND
                ),
            ),
            unit="percentunit",
            is_stacked=True,
            width=12,
        ),
        Panel(
            title="Time of a call, p99",
            description="The ten slowest. A call blocks all other requests of the process.",
            queries=(
                Query(
                    "topk(10, histogram_quantile(0.99, "
                    + total(rate(f"{_TIME}_bucket", POOL), "le", *_PLUGIN)
                    + ") > 0)",
                    _PLUGIN_LEGEND,
                ),
            ),
            unit="s",
            width=12,
        ),
        Panel(
            title="Failures",
            description="Calls that raised or broke their contract; the request went on without"
            " them.",
            queries=(
                Query(
                    total(rate("llm_d_epp_plugin_failures_total", POOL), *_PLUGIN) + " > 0",
                    _PLUGIN_LEGEND,
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Slow calls",
            description="Calls longer than extensions.guardRails.slowCallMs. A bare machine is a"
            " cause, too: see the pauses of the event loop.",
            queries=(
                Query(
                    total(rate("llm_d_epp_plugin_overruns_total", POOL), *_PLUGIN) + " > 0",
                    _PLUGIN_LEGEND,
                ),
            ),
            unit="cps",
        ),
        Panel(
            title="Scores corrected",
            description="Scores that were outside of 0 to 1, or no number: a fault of the plugin.",
            queries=(
                Query(
                    total(
                        increase("llm_d_epp_plugin_scores_corrected_total", POOL),
                        "plugin_name",
                        "kind",
                    ),
                    "{{plugin_name}} {{kind}}",
                ),
            ),
            unit="none",
        ),
    ),
)
_PREFIX: Final = Row(
    "Prefix cache and shadow profiles",
    (
        Panel(
            title="Part of the prompt that is cached",
            description="By the endpoint picker's own index of the chosen endpoint. The model"
            " server's own figure is on the dashboard of requests.",
            queries=(
                Query(quantile(0.5, "llm_d_epp_prefix_indexer_hit_ratio", POOL), "p50"),
                Query(quantile(0.9, "llm_d_epp_prefix_indexer_hit_ratio", POOL), "p90"),
                Query(mean("llm_d_epp_prefix_indexer_hit_ratio", POOL), "mean"),
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Predicted and observed",
            description="Part of the prompts that the index predicted to be cached, and that model"
            " servers reported as cached. Predicted far above observed: servers forget sooner than"
            " the index.",
            queries=tuple(
                Query(
                    total(rate(f"llm_d_epp_prefix_indexer_{what}_tokens_total", POOL))
                    + " / "
                    + total(rate("llm_d_epp_prefix_indexer_prompt_tokens_total", POOL)),
                    what,
                )
                for what in ("predicted", "observed")
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Memory of the index",
            description="At the limit, the oldest prefixes are forgotten.",
            queries=(
                Query(
                    total(select("llm_d_epp_prefix_indexer_bytes", POOL), "instance"),
                    "{{instance}}",
                ),
                Query(highest(select("llm_d_epp_prefix_indexer_bytes_limit", POOL)), "limit"),
            ),
            unit="bytes",
        ),
        Panel(
            title="Shadow profiles that disagree",
            description="Part of the requests for which a shadow profile would have chosen another"
            " endpoint than the real choice.",
            queries=(
                Query(
                    total(rate("llm_d_epp_shadow_disagreements_total", POOL), "profile")
                    + " / "
                    + total(rate("llm_d_epp_shadow_runs_total", POOL), "profile"),
                    "{{profile}}",
                ),
            ),
            unit="percentunit",
            maximum=1,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="scheduling",
    title="Endpoint picker / Scheduling",
    description="How are endpoints chosen, and what does a decision cost?",
    variables=POOLS,
    rows=(_OVERVIEW, _DECISIONS, _PLUGINS, _PREFIX),
)
