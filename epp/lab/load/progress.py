"""Run a plan with a progress bar in the terminal."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from epp.lab.load.plan import LoadPlan
from epp.lab.load.report import Report
from epp.lab.load.run import Progress, run


async def run_with_progress(
    plan: LoadPlan,
    console: Console,
    *,
    name: str = "load",
    watch: Callable[[Progress], None] | None = None,
) -> Report:
    """Run `plan` and draw a progress bar on `console`, which is removed at the end.

    `watch` is called with each state, too.

    The run's progress callback redraws the bar: rich's refresh thread would compete with the
    generator for CPU. Nothing is drawn if the console is not a terminal.
    """
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
    )
    bar = Bar(*columns, console=console, transient=True, auto_refresh=False)
    total = plan.requests if plan.requests is not None else plan.duration_seconds
    task = bar.add_task(name, total=total, facts="")

    def show(state: Progress) -> None:
        if watch is not None:
            watch(state)
        done = state.finished if plan.requests is not None else state.elapsed_seconds
        bar.update(task, completed=min(done, total or done), facts=_facts(state), refresh=True)

    if not console.is_terminal:
        return await run(plan, progress=watch)
    with bar:
        return await run(plan, progress=show)


def _facts(state: Progress) -> str:
    pace = state.finished / state.elapsed_seconds if state.elapsed_seconds > 0 else 0.0
    return (
        f"{state.finished} done, {state.in_flight} in flight, "
        f"{state.failed} failed, {pace:.0f} requests/s"
    )
