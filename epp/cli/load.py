"""``epp load``: load generator for a gateway."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from epp.cli import option_groups as groups
from epp.cli.load_output import print_report, print_search, print_statistics, print_step
from epp.cli.load_traffic import TrafficOptions, labels, slo_header_fields, stage
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
from epp.lab.results import Slo
from epp.lab.traffic import TraceFormat, TrafficError, parse_lengths

_EXPECTED = (*EXPECTED, LoadError, TrafficError)


def load(
    url: Annotated[
        str, groups.requests(help="The gateway.", metavar="URL")
    ] = "http://127.0.0.1:8080",
    model: Annotated[str, groups.requests(help="Model in every request.", metavar="NAME")] = "tiny",
    http: Annotated[
        int,
        groups.requests(
            help="Version of HTTP: 1 for HTTP/1.1, or 2; without TLS, HTTP/2 begins at once (prior"
            " knowledge).",
            metavar="N",
            min=1,
            max=2,
        ),
    ] = 1,
    trace: Annotated[
        Path | None,
        groups.traffic(
            help="Send the requests of a trace: Mooncake, Azure, ShareGPT, a table, or a file of"
            " --explain-file.",
            metavar="FILE",
        ),
    ] = None,
    trace_format: Annotated[
        TraceFormat | None,
        groups.traffic(help="Format of the trace; by default found by its beginning."),
    ] = None,
    traffic: Annotated[
        Path | None,
        groups.traffic(
            help="Send the requests of a traffic description in YAML: generators, traces, mixes.",
            metavar="FILE",
        ),
    ] = None,
    skip: Annotated[
        int, groups.traffic(help="Leave out the first requests.", metavar="N", min=0)
    ] = 0,
    max_prompt_tokens: Annotated[
        int | None,
        groups.traffic(help="Leave out requests with longer prompts.", metavar="N", min=1),
    ] = None,
    time_scale: Annotated[
        float | None,
        groups.traffic(
            help="Factor on arrival and think times: 0.5 doubles the rate.", metavar="FACTOR"
        ),
    ] = None,
    tenants: Annotated[
        str | None,
        groups.traffic(
            help="Shares of the fairness ids, as in alice=3,bob=1.", metavar="NAME=WEIGHT,…"
        ),
    ] = None,
    objectives: Annotated[
        str | None,
        groups.traffic(
            help="Shares of the objectives, which have the priorities.", metavar="NAME=WEIGHT,…"
        ),
    ] = None,
    adapters: Annotated[
        str | None,
        groups.traffic(
            help="Shares of the LoRA adapters; an empty name is the base model, as in =1,sql=1.",
            metavar="NAME=WEIGHT,…",
        ),
    ] = None,
    slo_headers: Annotated[
        bool,
        groups.traffic(
            "--slo-headers",
            help="Send --slo-ttft and --slo-tpot in the headers that the endpoint picker reads.",
        ),
    ] = False,
    ignore_eos: Annotated[
        bool | None,
        groups.traffic(
            help="Ask for exactly the output length (extension of vLLM and SGLang); by default with"
            " --trace and --traffic.",
            show_default=False,
        ),
    ] = None,
    describe_only: Annotated[
        bool,
        groups.traffic(
            "--describe", help="Print statistics of --trace or --traffic, and send nothing."
        ),
    ] = False,
    api: Annotated[
        generator.Api, groups.requests(help="OpenAI API to call.")
    ] = generator.Api.COMPLETIONS,
    concurrency: Annotated[
        int | None,
        groups.load(
            help="Number of clients with one request in flight each; 16 by default, without"
            " --trace and --traffic.",
            metavar="N",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        groups.load(help="Requests per second, instead of --concurrency.", metavar="N"),
    ] = None,
    stage_: Annotated[
        list[str] | None,
        groups.load(
            "--stage",
            help="Rate for some time, or a ramp FROM-TO:SECONDS, instead of --rate; repeatable.",
            metavar="RATE:SECONDS",
        ),
    ] = None,
    gamma_cv: Annotated[
        float | None,
        groups.load(
            help="Bursts: gaps of a gamma distribution with this coefficient of variation; 1 is"
            " Poisson, the default.",
            metavar="N",
        ),
    ] = None,
    requests: Annotated[
        int | None, groups.load(help="Stop after this number of requests.", metavar="N")
    ] = None,
    duration: Annotated[
        float | None,
        groups.load(
            help="Stop after this time; 10 by default, or as long as the traffic is.",
            metavar="SECONDS",
        ),
    ] = None,
    prompt_chars: Annotated[
        str,
        groups.requests(
            help="Characters in a prompt: N, MIN-MAX (uniform) or lognormal:MEDIAN:P99.",
            metavar="LENGTH",
        ),
    ] = "512",
    max_tokens: Annotated[
        str,
        groups.requests(
            help="Tokens to generate: N, MIN-MAX (uniform) or lognormal:MEDIAN:P99.",
            metavar="LENGTH",
        ),
    ] = "64",
    stream: Annotated[bool, groups.requests(help="Request server-sent events.")] = True,
    prefixes: Annotated[
        int, groups.requests(help="Number of prefixes that prompts share; 0 for none.", metavar="N")
    ] = 0,
    prefix_chars: Annotated[
        int, groups.requests(help="Length of the shared prefix.", metavar="N")
    ] = 0,
    header: Annotated[
        list[str] | None,
        groups.requests(
            "--header", "-H", help="Header of every request; repeatable.", metavar="NAME:VALUE"
        ),
    ] = None,
    abort_share: Annotated[
        float,
        groups.load(
            help="Fraction of requests that the client aborts at the first byte of the body, if the"
            " status is 2xx.",
            metavar="FRACTION",
        ),
    ] = 0.0,
    timeout: Annotated[
        float, groups.load(help="Maximum wait for a response.", metavar="SECONDS")
    ] = 60.0,
    seed: Annotated[
        int,
        groups.load(
            help="Seed of everything random: prompts, lengths, prefixes, arrival times, aborts.",
            metavar="N",
        ),
    ] = 0,
    search: Annotated[
        bool,
        groups.search(
            "--search",
            help="Search the highest rate that meets the objectives (--slo-ttft …), from --rate"
            " on, by default 1.",
        ),
    ] = False,
    search_goal: Annotated[
        float,
        groups.search(
            help="Fraction of the requests that must meet the objectives.", metavar="FRACTION"
        ),
    ] = 0.99,
    search_seconds: Annotated[
        float, groups.search(help="Length of a run.", metavar="SECONDS")
    ] = 20.0,
    search_repeats: Annotated[
        int,
        groups.search(
            help="Most runs of a rate that decides the result; the majority counts.",
            metavar="N",
            min=1,
        ),
    ] = 3,
    slo_ttft: Annotated[
        str | None,
        groups.results(
            help="Objective for the time to first token, such as 500ms; adds the goodput to the"
            " report.",
            metavar="DURATION",
        ),
    ] = None,
    slo_tpot: Annotated[
        str | None,
        groups.results(
            help="Objective for the time per output token after the first.", metavar="DURATION"
        ),
    ] = None,
    slo_latency: Annotated[
        str | None,
        groups.results(help="Objective for the time to the end of a response.", metavar="DURATION"),
    ] = None,
    fail_unless_goodput: Annotated[
        float | None,
        groups.results(
            help="Exit with status 1 if a smaller fraction of the requests met the objectives.",
            metavar="FRACTION",
        ),
    ] = None,
    allow_bottleneck: Annotated[
        bool,
        groups.results(
            "--allow-bottleneck",
            help="Exit with status 0 although the generator itself was too slow.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        groups.results(
            help="Write the results: .json (the report), or .csv or .jsonl (a line per request).",
            metavar="FILE",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        groups.results(
            help="Write a page with plots: one file that needs no network.", metavar="FILE"
        ),
    ] = None,
    as_json: Annotated[
        bool, groups.results("--json", help="Print JSON instead of a table.")
    ] = False,
) -> None:
    """Send load through a gateway and print the results.

    Exit status 1: all requests failed, or the goodput is below --fail-unless-goodput. 3: the
    generator itself was the bottleneck.
    """
    if output is not None:
        require_folder("--output", output)
    if html is not None:
        require_folder("--html", html)
    try:
        slo = Slo(
            ttft_seconds=_seconds("--slo-ttft", slo_ttft),
            tpot_seconds=_seconds("--slo-tpot", slo_tpot),
            latency_seconds=_seconds("--slo-latency", slo_latency),
        )
        if fail_unless_goodput is not None and not slo.is_set:
            fail("--fail-unless-goodput needs an objective, such as --slo-ttft 500ms")
        options = TrafficOptions(
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
        options.check()
        if describe_only:
            print_statistics(options.statistics(), as_json=as_json)
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
            ignore_eos=options.has_workload if ignore_eos is None else ignore_eos,
            http_version=http,
            seed=seed,
            **options.arrivals(),
        )
        if search:
            goal = generator.SearchGoal(
                share=search_goal, seconds=search_seconds, repeats=search_repeats
            )
            _search(plan, goal, first_rate=rate or 1.0, output=output, as_json=as_json)
            return
    except ValueError as error:
        fail(str(error))
    report = _run(plan)
    print_report(report, as_json=as_json)
    if output is not None and render is not None:
        write_whole(output, render(report))
    if html is not None:
        write_whole(html, generator.to_html(report))
    if report.failed and not (report.succeeded or report.left_early):
        fail(f"every request failed, {report.failed} of {report.sent}", status=1)
    if report.goodput and report.goodput.share < (fail_unless_goodput or 0.0):
        fail(
            f"goodput {report.goodput.share:.2%} is below --fail-unless-goodput"
            f" {fail_unless_goodput:.2%}",
            status=1,
        )
    if report.generator.bottleneck and not allow_bottleneck:
        fail(
            f"{report.generator.bottleneck}: the results show the limits of the generator, not of"
            " the gateway; lower the load, free the machine, or give --allow-bottleneck",
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
