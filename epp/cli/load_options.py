"""The options of ``epp load``."""

from pathlib import Path
from typing import Annotated

from epp.cli import option_groups as groups
from epp.lab import load as generator
from epp.lab.traffic import TraceFormat

Url = Annotated[str, groups.requests(help="The gateway.", metavar="URL")]
Model = Annotated[str, groups.requests(help="Model in every request.", metavar="NAME")]
Http = Annotated[
    int,
    groups.requests(
        help="Version of HTTP: 1 for HTTP/1.1, or 2; without TLS, HTTP/2 begins at once (prior"
        " knowledge).",
        metavar="N",
        min=1,
        max=2,
    ),
]
Trace = Annotated[
    Path | None,
    groups.traffic(
        help="Send the requests of a trace: Mooncake, Azure, ShareGPT, a table, or a file of"
        " --explain-file.",
        metavar="FILE",
    ),
]
FormatOfTrace = Annotated[
    TraceFormat | None,
    groups.traffic(help="Format of the trace; by default found by its beginning."),
]
Traffic = Annotated[
    Path | None,
    groups.traffic(
        help="Send the requests of a traffic description in YAML: generators, traces, mixes.",
        metavar="FILE",
    ),
]
Skip = Annotated[int, groups.traffic(help="Leave out the first requests.", metavar="N", min=0)]
MaxPromptTokens = Annotated[
    int | None,
    groups.traffic(help="Leave out requests with longer prompts.", metavar="N", min=1),
]
TimeScale = Annotated[
    float | None,
    groups.traffic(
        help="Factor on arrival and think times: 0.5 doubles the rate.", metavar="FACTOR"
    ),
]
Tenants = Annotated[
    str | None,
    groups.traffic(
        help="Shares of the fairness ids, as in alice=3,bob=1.", metavar="NAME=WEIGHT,…"
    ),
]
Objectives = Annotated[
    str | None,
    groups.traffic(
        help="Shares of the objectives, which have the priorities.", metavar="NAME=WEIGHT,…"
    ),
]
Adapters = Annotated[
    str | None,
    groups.traffic(
        help="Shares of the LoRA adapters; an empty name is the base model, as in =1,sql=1.",
        metavar="NAME=WEIGHT,…",
    ),
]
SloHeaders = Annotated[
    bool,
    groups.traffic(
        "--slo-headers",
        help="Send --slo-ttft and --slo-tpot in the headers that the endpoint picker reads.",
    ),
]
IgnoreEos = Annotated[
    bool | None,
    groups.traffic(
        help="Ask for exactly the output length (extension of vLLM and SGLang); by default with"
        " --trace and --traffic.",
        show_default=False,
    ),
]
DescribeOnly = Annotated[
    bool,
    groups.traffic(
        "--describe", help="Print statistics of --trace or --traffic, and send nothing."
    ),
]
ApiName = Annotated[generator.Api, groups.requests(help="OpenAI API to call.")]
Concurrency = Annotated[
    int | None,
    groups.load(
        help="Number of clients with one request in flight each; 16 by default, without"
        " --trace and --traffic.",
        metavar="N",
    ),
]
Rate = Annotated[
    float | None,
    groups.load(help="Requests per second, instead of --concurrency.", metavar="N"),
]
Stage = Annotated[
    list[str] | None,
    groups.load(
        "--stage",
        help="Rate for some time, or a ramp FROM-TO:SECONDS, instead of --rate; repeatable.",
        metavar="RATE:SECONDS",
    ),
]
GammaCv = Annotated[
    float | None,
    groups.load(
        help="Bursts: gaps of a gamma distribution with this coefficient of variation; 1 is"
        " Poisson, the default.",
        metavar="N",
    ),
]
Requests = Annotated[
    int | None, groups.load(help="Stop after this number of requests.", metavar="N")
]
Duration = Annotated[
    float | None,
    groups.load(
        help="Stop after this time; 10 by default, or as long as the traffic is.",
        metavar="SECONDS",
    ),
]
PromptChars = Annotated[
    str,
    groups.requests(
        help="Characters in a prompt: N, MIN-MAX (uniform) or lognormal:MEDIAN:P99.",
        metavar="LENGTH",
    ),
]
MaxTokens = Annotated[
    str,
    groups.requests(
        help="Tokens to generate: N, MIN-MAX (uniform) or lognormal:MEDIAN:P99.",
        metavar="LENGTH",
    ),
]
Stream = Annotated[bool, groups.requests(help="Request server-sent events.")]
Prefixes = Annotated[
    int, groups.requests(help="Number of prefixes that prompts share; 0 for none.", metavar="N")
]
PrefixChars = Annotated[int, groups.requests(help="Length of the shared prefix.", metavar="N")]
Header = Annotated[
    list[str] | None,
    groups.requests(
        "--header", "-H", help="Header of every request; repeatable.", metavar="NAME:VALUE"
    ),
]
AbortShare = Annotated[
    float,
    groups.load(
        help="Fraction of requests that the client aborts at the first byte of the body, if the"
        " status is 2xx.",
        metavar="FRACTION",
    ),
]
Timeout = Annotated[float, groups.load(help="Maximum wait for a response.", metavar="SECONDS")]
Seed = Annotated[
    int,
    groups.load(
        help="Seed of everything random: prompts, lengths, prefixes, arrival times, aborts.",
        metavar="N",
    ),
]
Search = Annotated[
    bool,
    groups.search(
        "--search",
        help="Search the highest rate that meets the objectives (--slo-ttft …), from --rate"
        " on, by default 1.",
    ),
]
SearchGoal = Annotated[
    float,
    groups.search(
        help="Fraction of the requests that must meet the objectives.", metavar="FRACTION"
    ),
]
SearchSeconds = Annotated[float, groups.search(help="Length of a run.", metavar="SECONDS")]
SearchRepeats = Annotated[
    int,
    groups.search(
        help="Most runs of a rate that decides the result; the majority counts.",
        metavar="N",
        min=1,
    ),
]
SloTtft = Annotated[
    str | None,
    groups.results(
        help="Objective for the time to first token, such as 500ms; adds the goodput to the"
        " report.",
        metavar="DURATION",
    ),
]
SloTpot = Annotated[
    str | None,
    groups.results(
        help="Objective for the time per output token after the first.", metavar="DURATION"
    ),
]
SloLatency = Annotated[
    str | None,
    groups.results(help="Objective for the time to the end of a response.", metavar="DURATION"),
]
FailUnlessGoodput = Annotated[
    float | None,
    groups.results(
        help="Exit with status 1 if a smaller fraction of the requests met the objectives.",
        metavar="FRACTION",
    ),
]
AllowBottleneck = Annotated[
    bool,
    groups.results(
        "--allow-bottleneck",
        help="Exit with status 0 although the generator, or the fake fleet, was too slow.",
    ),
]
Output = Annotated[
    Path | None,
    groups.results(
        help="Write the results: .json (the report), or .csv or .jsonl (a line per request).",
        metavar="FILE",
    ),
]
JoinFleet = Annotated[
    str | None,
    groups.results(
        help="Add what the servers did: the file of epp fleet --record, or /lab/requests of its"
        " --control-port.",
        metavar="FILE_OR_URL",
    ),
]
JoinDecisions = Annotated[
    str | None,
    groups.results(
        help="Add what the endpoint picker decided: the file of epp serve --explain-file, or"
        " the URL of its --metrics-port.",
        metavar="FILE_OR_URL",
    ),
]
Html = Annotated[
    Path | None,
    groups.results(help="Write a page with plots: one file that needs no network.", metavar="FILE"),
]
AsJson = Annotated[bool, groups.results("--json", help="Print JSON instead of a table.")]
