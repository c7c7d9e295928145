"""Settings of outlier detection, with Envoy's names where Envoy has the setting."""

from dataclasses import dataclass
from typing import Annotated, Final

from epp.inputs import Form, Option, Panel

MIN_CHECK_SECONDS: Final = 0.05
"""Minimum time between two health checks of an endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSettings:
    """When an endpoint is ejected, and how it returns."""

    outlier_detection: Annotated[
        bool,
        Option(
            "Send nothing to endpoints that refuse connections, hang or fail; always off with"
            " --compat=reference.",
            panel=Panel.OUTLIERS,
            form=Form.BOOLEAN,
        ),
    ] = True
    consecutive_5xx: Annotated[
        int,
        Option(
            "Eject an endpoint after this many responses in a row with status 5xx.",
            panel=Panel.OUTLIERS,
            metavar="N",
            min=1,
        ),
    ] = 3
    consecutive_scrape_failures: Annotated[
        int,
        Option(
            "Eject an endpoint after this many scrapes in a row that found no server or got no"
            " response.",
            panel=Panel.OUTLIERS,
            metavar="N",
            min=1,
        ),
    ] = 2
    health_check_path: Annotated[
        str,
        Option(
            "Path of the model servers' health page; an endpoint that answers there with 5xx or"
            " refuses connections twice in a row is ejected. Empty for no health checks.",
            panel=Panel.OUTLIERS,
            metavar="PATH",
        ),
    ] = "/health"
    health_check_interval_seconds: Annotated[
        float,
        Option(
            "Time between two health checks of an endpoint.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--health-check-interval",
        ),
    ] = 1.0
    success_rate_request_volume: Annotated[
        int,
        Option(
            "Compare the success rates of endpoints with this many recent requests, and eject one"
            " whose rate is far below that of the others. 0 for no comparison.",
            panel=Panel.OUTLIERS,
            metavar="N",
            min=0,
        ),
    ] = 20
    scrape_overdue_seconds: Annotated[
        float,
        Option(
            "Eject an endpoint whose scrape takes this long and three times as long as usual for"
            " it, while those of others do not, unless it responds.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--scrape-overdue-time",
        ),
    ] = 0.3
    response_overdue_seconds: Annotated[
        float,
        Option(
            "Eject an endpoint at which several streamed requests wait, none of them in its queue,"
            " and no response has begun for this long and three times as long as at others. 0 for"
            " never.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--response-overdue-time",
        ),
    ] = 5.0
    base_ejection_seconds: Annotated[
        float,
        Option(
            "Length of the first ejection for failed responses; it doubles with each further one.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--base-ejection-time",
        ),
    ] = 1.0
    max_ejection_seconds: Annotated[
        float,
        Option(
            "Maximum length of an ejection for failed responses.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--max-ejection-time",
        ),
    ] = 60.0
    max_ejection_percent: Annotated[
        int,
        Option(
            "If more of the pool would be ejected, all endpoints are used; one endpoint may always"
            " be ejected.",
            panel=Panel.OUTLIERS,
            metavar="PERCENT",
            min=0,
            max=100,
        ),
    ] = 50
    slow_start_seconds: Annotated[
        float,
        Option(
            "Time in which a returning endpoint's share of requests grows from a tenth to all.",
            panel=Panel.OUTLIERS,
            form=Form.DURATION,
            flag="--slow-start-window",
        ),
    ] = 2.0

    def __post_init__(self) -> None:
        """Check the health checks.

        Raises:
            ValueError: The path or the interval is invalid.
        """
        path = self.health_check_path
        if path and not (path.startswith("/") and path.isascii() and path.isprintable()):
            raise ValueError(f"--health-check-path: {path!r} is not a path such as /health")
        if " " in path:
            raise ValueError(f"--health-check-path: {path!r} has a space; write it as %20")
        if self.health_check_interval_seconds < MIN_CHECK_SECONDS:
            raise ValueError(
                f"--health-check-interval: {self.health_check_interval_seconds:g} s is less than"
                f" {MIN_CHECK_SECONDS:g} s"
            )
