"""``epp load``: load generator for a gateway."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

from rich.console import Console

from epp.cli import option_groups as groups
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
from epp.lab.results import Slo, summary_table
from epp.lab.traffic import TrafficError, parse_lengths

_EXPECTED = (*EXPECTED, LoadError, TrafficError)


def load(
    url: Annotated[
        str, groups.requests(help="The gateway.", metavar="URL")
    ] = "http://127.0.0.1:8080",
    model: Annotated[str, groups.requests(help="Model in every request.", metavar="NAME")] = "tiny",
    api: Annotated[
        generator.Api, groups.requests(help="OpenAI API to call.")
    ] = generator.Api.COMPLETIONS,
    concurrency: Annotated[
        int | None,
        groups.load(
            help="Number of clients with one request in flight each; 16 by default.", metavar="N"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        groups.load(help="Requests per second, instead of --concurrency.", metavar="N"),
    ] = None,
    requests: Annotated[
        int | None, groups.load(help="Stop after this number of requests.", metavar="N")
    ] = None,
    duration: Annotated[
        float | None, groups.load(help="Stop after this time; 10 by default.", metavar="SECONDS")
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
    """Send load through a gateway and print the results; exit status 1 if all requests failed."""
    if concurrency is None and rate is None:
        concurrency = 16
    if requests is None and duration is None:
        duration = 10.0
    if output is not None:
        require_folder("--output", output)
    if html is not None:
        require_folder("--html", html)
    try:
        render = None if output is None else from_flag("--output", generator.renderer, output)
        plan = generator.LoadPlan(
            url=url,
            model=model,
            api=api,
            concurrency=concurrency,
            rate=rate,
            requests=requests,
            duration_seconds=duration,
            prompt_chars=from_flag("--prompt-chars", parse_lengths, prompt_chars),
            max_tokens=from_flag("--max-tokens", parse_lengths, max_tokens),
            slo=Slo(
                ttft_seconds=_seconds("--slo-ttft", slo_ttft),
                tpot_seconds=_seconds("--slo-tpot", slo_tpot),
                latency_seconds=_seconds("--slo-latency", slo_latency),
            ),
            stream=stream,
            prefixes=prefixes,
            prefix_chars=prefix_chars,
            headers=tuple(_header(each) for each in header or ()),
            abort_share=abort_share,
            timeout_seconds=timeout,
            seed=seed,
        )
    except ValueError as error:
        fail(str(error))
    reports: list[generator.Report] = []

    async def main(stop: asyncio.Event) -> None:
        running = asyncio.create_task(
            generator.run_with_progress(plan, Console(stderr=True)), name="load"
        )
        stopping = asyncio.create_task(_cancel_on(stop, running), name="stop")
        reports.append(await running)
        stopping.cancel()

    run_until_signalled(main, expected=_EXPECTED)
    (report,) = reports
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))  # noqa: T201 - the command's output
    else:
        Console(highlight=False).print(summary_table(report))
    if output is not None and render is not None:
        write_whole(output, render(report))
    if html is not None:
        write_whole(html, generator.to_html(report))
    if report.failed and not (report.succeeded or report.left_early):
        fail(f"every request failed, {report.failed} of {report.sent}", status=1)


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


async def _cancel_on(stop: asyncio.Event, running: "asyncio.Task[generator.Report]") -> None:
    await stop.wait()
    running.cancel()
