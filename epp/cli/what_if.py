"""``epp explain what-if``: a recorded decision under another configuration."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from epp.admin.decision_search import DecisionSearchError
from epp.admin.what_if import WhatIf, WhatIfError, what_if
from epp.building import make_builder
from epp.cli.admin_options import Connect, with_client
from epp.cli.config_options import load_config
from epp.cli.debug_pages import DebugPageError, plain
from epp.cli.decision_tables import profile_heading, profile_table
from epp.cli.explain_console import explain_console
from epp.cli.explain_decisions import AsJson, DecisionsFile, RequestId, recorded_decision
from epp.cli.running import fail
from epp.config import ConfigError
from epp.config.instances import close_all


@with_client()
def what_if_command(
    request_id: RequestId,
    config: Annotated[
        Path, typer.Option("--config", help="The other EndpointPickerConfig.", metavar="FILE")
    ],
    file: DecisionsFile = None,
    *,
    connect: Connect,
    as_json: AsJson = False,
) -> None:
    """Make a recorded decision again under another configuration, in this process.

    The endpoints and their values are those of the record. Scorers and filters that depend on
    nothing else are computed; the results of others are taken from the record. The exit status is 1
    if the endpoint is another one, and 2 if the decision or the configuration could not be read.
    """
    try:
        record = recorded_decision(
            request_id,
            file,
            connect,
        )
        graph = make_builder().build(load_config(config, None))
    except (DebugPageError, DecisionSearchError, ConfigError) as error:
        fail(str(error))
    try:
        outcome = what_if(record, graph)
    except WhatIfError as error:
        fail(str(error))
    finally:
        close_all(graph.plugins.values())
    if as_json:
        typer.echo(msgspec.json.encode(outcome))
    else:
        console = explain_console()
        for each in _shown(outcome):
            console.print(each)
    if not outcome.is_same:
        raise typer.Exit(1)


def _shown(outcome: WhatIf) -> Iterable[RenderableType]:
    before, after = outcome.before, outcome.after
    was, now = before.endpoint or "no endpoint", after.endpoint or "no endpoint"
    if was == now:
        verdict = f"{now}, as before"
    elif outcome.is_same:
        verdict = f"{was} or {now}: they have the same total, and ties are broken at random"
    else:
        verdict = f"{now} instead of {was}"
    yield plain(f"{before.request_id}: {verdict}. {after.why}")
    if outcome.draws:
        yield "The picker draws at random: compare the totals, not the pick."
    for what, names in (
        ("computed", outcome.computed),
        ("taken from the record", outcome.replayed),
        ("not in the record (scorers count as 0, filters let all pass)", outcome.unknown),
    ):
        if names:
            yield plain(f"{what}: {', '.join(names)}")
    totals = {
        name: total
        for each in before.profiles
        if each.is_primary
        for name, total in zip(each.endpoints, each.totals, strict=True)
    }
    for profile in after.profiles:
        yield ""
        yield plain(profile_heading(profile))
        yield profile_table(profile, after, totals if profile.is_primary else None)
