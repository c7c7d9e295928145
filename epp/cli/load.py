"""``epp load``: load generator for a gateway."""

import asyncio
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from epp.cli import load_options as options
from epp.cli.load_joins import fleet_bottleneck, join
from epp.cli.load_output import print_report, print_search, print_statistics, print_step
from epp.cli.load_traffic import TrafficOptions
from epp.cli.load_values import labels, slo_header_fields, stage
from epp.cli.running import (
    EXPECTED,
    fail,
    from_flag,
    require_folder,
    run_until_signalled,
    write_whole,
)
from epp.cli.units import duration as seconds
from epp.lab import load as generator
from epp.lab.load import LoadError
from epp.lab.results import JoinError, Slo
from epp.lab.traffic import TrafficError, parse_lengths

_EXPECTED = (*EXPECTED, LoadError, TrafficError)


def load(
    url: options.Url = "http://127.0.0.1:8080",
    model: options.Model = "tiny",
    http: options.Http = 1,
    trace: options.Trace = None,
    trace_format: options.FormatOfTrace = None,
    traffic: options.Traffic = None,
    skip: options.Skip = 0,
    max_prompt_tokens: options.MaxPromptTokens = None,
    time_scale: options.TimeScale = None,
    tenants: options.Tenants = None,
    objectives: options.Objectives = None,
    adapters: options.Adapters = None,
    slo_headers: options.SloHeaders = False,
    ignore_eos: options.IgnoreEos = None,
    describe_only: options.DescribeOnly = False,
    api: options.ApiName = generator.Api.COMPLETIONS,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    stage_: options.Stage = None,
    gamma_cv: options.GammaCv = None,
    requests: options.Requests = None,
    duration: options.Duration = None,
    prompt_chars: options.PromptChars = "512",
    max_tokens: options.MaxTokens = "64",
    stream: options.Stream = True,
    prefixes: options.Prefixes = 0,
    prefix_chars: options.PrefixChars = 0,
    header: options.Header = None,
    abort_share: options.AbortShare = 0.0,
    timeout: options.Timeout = 60.0,
    seed: options.Seed = 0,
    search: options.Search = False,
    search_goal: options.SearchGoal = 0.99,
    search_seconds: options.SearchSeconds = 20.0,
    search_repeats: options.SearchRepeats = 3,
    slo_ttft: options.SloTtft = None,
    slo_tpot: options.SloTpot = None,
    slo_latency: options.SloLatency = None,
    fail_unless_goodput: options.FailUnlessGoodput = None,
    allow_bottleneck: options.AllowBottleneck = False,
    output: options.Output = None,
    join_fleet: options.JoinFleet = None,
    join_decisions: options.JoinDecisions = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> None:
    """Send load through a gateway and print the results.

    Exit status 1: all requests failed, or the goodput is below --fail-unless-goodput. 3: the
    generator itself, or the fleet of --join-fleet, was the bottleneck.
    """
    for option, path in (("--output", output), ("--html", html)):
        if path is not None:
            require_folder(option, path)
    try:
        slo = Slo(
            ttft_seconds=_seconds("--slo-ttft", slo_ttft),
            tpot_seconds=_seconds("--slo-tpot", slo_tpot),
            latency_seconds=_seconds("--slo-latency", slo_latency),
        )
        if fail_unless_goodput is not None and not slo.is_set:
            fail("--fail-unless-goodput needs an objective, such as --slo-ttft 500ms")
        traffic_options = TrafficOptions(
            trace=trace,
            trace_format=trace_format,
            traffic=traffic,
            concurrency=concurrency,
            rate=rate,
            is_search=search,
            stages=tuple(from_flag("--stage", stage, each) for each in stage_ or ()),
            gamma_cv=gamma_cv,
            requests=requests,
            duration_seconds=duration,
            skip=skip,
            time_scale=time_scale,
            max_prompt_tokens=max_prompt_tokens,
            labels=labels(tenants=tenants, objectives=objectives, adapters=adapters),
            seed=seed,
        )
        traffic_options.check()
        if describe_only:
            print_statistics(traffic_options.statistics(), as_json=as_json)
            return
        render = None if output is None else from_flag("--output", generator.renderer, output)
        plan = generator.LoadPlan(
            url=url,
            model=model,
            api=api,
            prompt_chars=from_flag("--prompt-chars", parse_lengths, prompt_chars),
            max_tokens=from_flag("--max-tokens", parse_lengths, max_tokens),
            slo=slo,
            stream=stream,
            prefixes=prefixes,
            prefix_chars=prefix_chars,
            headers=(*map(_header, header or ()), *(slo_header_fields(slo) if slo_headers else ())),
            abort_share=abort_share,
            timeout_seconds=timeout,
            ignore_eos=traffic_options.has_workload if ignore_eos is None else ignore_eos,
            http_version=http,
            seed=seed,
            **traffic_options.arrivals(),
        )
        if search:
            if html or join_fleet or join_decisions:
                fail("--html, --join-fleet and --join-decisions are for one run, not for --search")
            goal = generator.SearchGoal(
                share=search_goal, seconds=search_seconds, repeats=search_repeats
            )
            _search(plan, goal, first_rate=rate or 1.0, output=output, as_json=as_json)
            return
    except ValueError as error:
        fail(str(error))
    report = _run(plan)
    report = _joined(report, join_fleet, join_decisions)
    print_report(report, as_json=as_json)
    for path, rendered in ((output, render), (html, generator.to_html)):
        if path is not None and rendered is not None:
            write_whole(path, rendered(report))
    if report.failed and not (report.succeeded or report.left_early):
        fail(f"every request failed, {report.failed} of {report.sent}", status=1)
    if report.goodput and report.goodput.share < (fail_unless_goodput or 0.0):
        fail(
            f"goodput {report.goodput.share:.2%} is below --fail-unless-goodput"
            f" {fail_unless_goodput:.2%}",
            status=1,
        )
    if not allow_bottleneck:
        _check_bottleneck(report, join_fleet)


def _check_bottleneck(report: generator.Report, fleet: str | None) -> None:
    """Exit with an error if the generator, or the fake fleet, was too slow."""
    if report.generator.bottleneck:
        fail(
            f"{report.generator.bottleneck}: the results show the limits of the generator, not of"
            " the gateway; lower the load, free the machine, or give --allow-bottleneck",
            status=3,
        )
    if fleet is not None:
        _check_fleet(fleet)


def _check_fleet(fleet: str) -> None:
    """Exit with an error if a fake fleet was too slow."""
    try:
        reason = fleet_bottleneck(fleet)
    except JoinError:
        return  # the join has already reported it
    if reason is not None:
        fail(
            f"the fake fleet was the bottleneck: {reason}; the results show its limits, not those"
            " of the gateway. Start fewer servers, free the machine, or give --allow-bottleneck",
            status=3,
        )


def _run(plan: generator.LoadPlan) -> generator.Report:
    reports: list[generator.Report] = []

    async def main(stop: asyncio.Event) -> None:
        running = asyncio.create_task(
            generator.run_with_progress(plan, Console(stderr=True)), name="load"
        )
        stopping = asyncio.create_task(_cancel_on(stop, running), name="stop")
        reports.append(await running)
        stopping.cancel()

    run_until_signalled(main, expected=_EXPECTED)
    return reports[0]


def _joined(report: generator.Report, fleet: str | None, decisions: str | None) -> generator.Report:
    if fleet is None and decisions is None:
        return report
    console = Console(stderr=True, highlight=False)
    try:
        records = join(
            report.records,
            fleet=fleet,
            decisions=decisions,
            notify=lambda text: console.print(Text(text)),
        )
    except JoinError as error:
        # A failed join must not lose the results of the run.
        console.print(Text(f"not joined: {error}", style="yellow"))
        return report
    return report.with_records(records)


def _search(
    plan: generator.LoadPlan,
    goal: generator.SearchGoal,
    *,
    first_rate: float,
    output: Path | None,
    as_json: bool,
) -> None:
    console = Console(stderr=True, highlight=False)
    run_step = generator.step_runner(plan, goal, console)
    results: list[generator.SearchResult] = []

    async def main(stop: asyncio.Event) -> None:
        running = asyncio.create_task(
            generator.search(
                goal,
                run_step,
                first_rate=first_rate,
                on_step=lambda step: print_step(step, console),
            ),
            name="search",
        )
        stopping = asyncio.create_task(_cancel_on(stop, running), name="stop")
        results.append(await running)
        stopping.cancel()

    run_until_signalled(main, expected=_EXPECTED)
    (result,) = results
    print_search(result, goal, as_json=as_json)
    if output is not None:
        write_whole(output, generator.search_json(result, goal))
    if result.highest is None:
        fail("no rate met the objectives", status=1)


def _seconds(flag: str, text: str | None) -> float | None:
    return None if text is None else from_flag(flag, seconds, text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        fail(
            f"--header {text!r} has no colon; NAME:VALUE is wanted,"
            " as in x-llm-d-inference-fairness-id:alice"
        )
    return name.strip(), value.strip()


async def _cancel_on(stop: asyncio.Event, running: "asyncio.Task[Any]") -> None:
    await stop.wait()
    running.cancel()
