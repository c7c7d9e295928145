"""Reads a traffic description: the section `traffic:` of a scenario, or a file of its own.

A description has one source, a `generator`, a `trace` or several `streams`. The other fields say
when its requests arrive, which of them are sent, and what they carry.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from epp.lab.traffic import workload as steps
from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.fields import DurationField, parse, seconds
from epp.lab.traffic.generator_fields import GENERATORS
from epp.lab.traffic.selection import Arrivals, CommonFields, Context, ConversationSource, select
from epp.lab.traffic.sessions import sessions
from epp.lab.traffic.traces import Trace, TraceFormat, detect_format
from epp.lab.traffic.workload import BLOCK_TOKENS, Conversation, Workload


class TraceFields(CommonFields, frozen=True, kw_only=True):
    """A trace file."""

    trace: str
    format: str | None = None
    block_tokens: int = 512
    think_time: DurationField = 0.0
    base_model: str | None = None


class StreamsFields(CommonFields, frozen=True, kw_only=True):
    """Several sources at the same time."""

    streams: list[dict[str, Any]]


def load_traffic(
    document: Mapping[str, Any],
    *,
    seed: int = 0,
    folder: Path = Path(),
    where: str = "traffic",
    must_end: bool = True,
) -> Workload:
    """Return the workload of a description; trace files are read here.

    Args:
        document: The description.
        seed: Seed of everything random: times, lengths, texts, labels.
        folder: Base folder of relative paths.
        where: Name of the description, for errors.
        must_end: Refuse traffic without an end.

    Raises:
        TrafficError: A field is invalid, or a file cannot be read.
    """
    source = _source(document, Context(seed, folder, where, "s"))
    if must_end and not source.ends:
        raise TrafficError(
            f"{where}: the requests would never end; give limit (a number of requests) or duration"
        )
    return Workload(
        lambda: steps.numbered(source.conversations()),
        concurrency=source.concurrency,
        description=dict(document),
        block_tokens=source.block_tokens,
    )


def _source(document: object, context: Context) -> ConversationSource:
    if not isinstance(document, Mapping):
        raise TrafficError(f"{context.where}: must be a mapping, not {type(document).__name__}")
    given = [name for name in _KINDS if name in document]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise TrafficError(f"{context.where}: give one of {', '.join(_KINDS)}; {found}")
    return _KINDS[given[0]](document, context)


def _generator(document: Mapping[str, Any], context: Context) -> ConversationSource:
    where = context.where
    name = document["generator"]
    if name not in GENERATORS:
        raise TrafficError(f"{where}.generator: {name!r} is not one of {', '.join(GENERATORS)}")
    kind, shape_of = GENERATORS[name]
    fields = parse({key: document[key] for key in document if key != "generator"}, kind, where)
    shape = shape_of(fields, where, context.folder)
    arrivals = Arrivals.of(fields, context)
    if arrivals is None:
        raise TrafficError(
            f"{where}.arrivals: is missing; write `arrivals: {{rate: 5}}` (conversations per"
            " second) or `arrivals: {concurrency: 16}`"
        )

    def make() -> Iterator[Conversation]:
        return sessions(shape, arrivals.times(context), name=context.name, seed=context.seed)

    return select(ConversationSource(make, arrivals.concurrency, arrivals.ends), fields, context)


def _trace(document: Mapping[str, Any], context: Context) -> ConversationSource:
    where = context.where
    fields = parse(document, TraceFields, where)
    path = context.folder / fields.trace
    if fields.format is not None and fields.format not in set(TraceFormat):
        known = ", ".join(TraceFormat)
        raise TrafficError(f"{where}.format: {fields.format!r} is not one of {known}")
    if fields.block_tokens < 1:
        raise TrafficError(f"{where}.block_tokens: {fields.block_tokens} is not above 0")
    trace = Trace(
        path=path,
        format=TraceFormat(fields.format) if fields.format else detect_format(path),
        block_tokens=fields.block_tokens,
        think_seconds=seconds(fields.think_time, f"{where}.think_time"),
        base_model=fields.base_model,
        name=context.name,
        seed=context.seed,
    )
    arrivals = Arrivals.of(fields, context)
    # A week of Azure's trace has 27 million rows: do not read more than are used.
    is_cut = (
        fields.limit is not None
        and fields.max_prompt_tokens is None
        and trace.format is not TraceFormat.SHAREGPT  # a row may be no request there
    )
    conversations = trace.read((fields.limit or 0) + fields.skip if is_cut else None)
    first = next(conversations())[0]
    if arrivals is None and first.arrives_at is None:
        raise TrafficError(
            f"{where}.arrivals: is missing, and {path} has no times; write `arrivals: {{rate: 5}}`"
            " or `arrivals: {concurrency: 16}`"
        )
    concurrency = arrivals.concurrency if arrivals else None

    def make() -> Iterator[Conversation]:
        if arrivals is None:
            return conversations()
        return steps.at_times(conversations(), arrivals.times(context))

    is_mooncake = trace.format is TraceFormat.MOONCAKE
    blocks = fields.block_tokens if is_mooncake else BLOCK_TOKENS
    source = ConversationSource(make, concurrency, ends=True, block_tokens=blocks)
    return select(source, fields, context)


def _streams(document: Mapping[str, Any], context: Context) -> ConversationSource:
    where = context.where
    fields = parse(document, StreamsFields, where)
    if not fields.streams:
        raise TrafficError(f"{where}.streams: must not be empty")
    if fields.arrivals is not None:
        raise TrafficError(f"{where}.arrivals: each stream has its own; move it there")
    sources = []
    for number, each in enumerate(fields.streams):
        place = f"{where}.streams[{number}]"
        name = f"{context.name}{number}-"
        source = _source(each, Context(context.seed, context.folder, place, name))
        if source.concurrency is not None:
            raise TrafficError(
                f"{place}.arrivals: streams need times; give rate or stages, not concurrency"
            )
        sources.append(source)

    def make() -> Iterator[Conversation]:
        return steps.merged([source.conversations() for source in sources])

    merged = ConversationSource(make, None, all(source.ends for source in sources))
    return select(merged, fields, context)


_KINDS: Final[dict[str, Callable[[Mapping[str, Any], Context], ConversationSource]]] = {
    "generator": _generator,
    "trace": _trace,
    "streams": _streams,
}
