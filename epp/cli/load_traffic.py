"""Build the workload of ``epp load`` from a traffic description, a trace, stages and labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epp.inputs import why_unreadable
from epp.lab.traffic import (
    LabelMix,
    Mix,
    RatePiece,
    TraceFormat,
    TrafficError,
    TrafficStatistics,
    Workload,
    describe,
    load_traffic,
)
from epp.lab.yaml_text import parse_yaml

_DEFAULT_CLIENTS = 16
_DEFAULT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """The options that say which requests are sent when."""

    trace: Path | None
    trace_format: TraceFormat | None
    traffic: Path | None
    concurrency: int | None
    rate: float | None
    is_search: bool
    """Whether `rate` is only where a search begins."""
    stages: tuple[RatePiece, ...]
    gamma_cv: float | None
    requests: int | None
    duration_seconds: float | None
    skip: int
    time_scale: float | None
    max_prompt_tokens: int | None
    labels: Mapping[str, dict[str, float]]
    seed: int

    @property
    def has_workload(self) -> bool:
        """Whether requests come from a trace or a description."""
        return self.trace is not None or self.traffic is not None

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            ValueError: The message names the options.
        """
        if self.trace is not None and self.traffic is not None:
            raise ValueError("give --trace or --traffic, not both")
        if self.trace_format is not None and self.trace is None:
            raise ValueError("--trace-format goes with --trace")
        given = [
            name
            for name, value in (
                ("--concurrency", self.concurrency),
                ("--rate", self.rate),
                ("--stage", self.stages or None),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise ValueError(f"give {' or '.join(given)}, not both")
        if self.has_workload:
            return
        for name, is_given in (
            ("--skip", self.skip),
            ("--time-scale", self.time_scale is not None),
            ("--max-prompt-tokens", self.max_prompt_tokens is not None),
        ):
            if is_given:
                raise ValueError(f"{name} goes with --trace or --traffic")

    def arrivals(self) -> dict[str, Any]:
        """Return the fields of a load plan for what is sent when.

        Raises:
            TrafficError: A file cannot be read, or a field is invalid.
        """
        if self.has_workload:
            workload = self.workload(must_end=self.duration_seconds is None and not self.is_search)
            return {"workload": workload, "duration_seconds": self.duration_seconds}
        concurrency, rate, duration_seconds = self.concurrency, self.rate, self.duration_seconds
        if concurrency is None and rate is None and not self.stages:
            concurrency, rate = (None, 1.0) if self.is_search else (_DEFAULT_CLIENTS, None)
        if self.requests is None and duration_seconds is None and not self.stages:
            duration_seconds = _DEFAULT_SECONDS
        return {
            "concurrency": concurrency,
            "rate": rate,
            "stages": self.stages,
            "gamma_cv": self.gamma_cv,
            "requests": self.requests,
            "duration_seconds": duration_seconds,
            "labels": self.label_mix(),
        }

    def statistics(self) -> TrafficStatistics:
        """Return the statistics of `--trace` or `--traffic`.

        Raises:
            ValueError: Neither is given.
            TrafficError: A file cannot be read, or a field is invalid.
        """
        if not self.has_workload:
            raise ValueError("--describe needs --trace or --traffic")
        workload = self.workload(must_end=True)
        return describe(workload, tokens_per_block=workload.block_tokens)

    def workload(self, *, must_end: bool) -> Workload:
        """Return the workload of `--trace` or `--traffic`, with what other options change.

        Raises:
            TrafficError: A file cannot be read, or a field is invalid.
        """
        document, folder, where = self._document()
        if arrivals := self._arrivals():
            document["arrivals"] = arrivals
        for name, value in (
            ("limit", self.requests),
            ("skip", self.skip or None),
            ("time_scale", self.time_scale),
            ("max_prompt_tokens", self.max_prompt_tokens),
        ):
            if value is not None:
                document[name] = value
        document.update(self.labels)
        return load_traffic(document, seed=self.seed, folder=folder, where=where, must_end=must_end)

    def label_mix(self) -> LabelMix | None:
        """Return the labels of generated prompts; None without any.

        Raises:
            TrafficError: The weights are out of range.
        """
        if not self.labels:
            return None
        mixes = {name: Mix.of(shares) for name, shares in self.labels.items()}
        return LabelMix(
            tenants=mixes.get("tenants"),
            objectives=mixes.get("objectives"),
            adapters=mixes.get("adapters"),
        )

    def _document(self) -> tuple[dict[str, Any], Path, str]:
        if self.trace is not None:
            document: dict[str, Any] = {"trace": str(self.trace)}
            if self.trace_format is not None:
                document["format"] = self.trace_format.value
            return document, Path(), "--trace"
        path = self.traffic or Path()
        document = read_description(path)
        where = str(path)
        if set(document) & {"traffic"}:
            document, where = document["traffic"], f"{path}: traffic"
        return dict(document), path.parent, where

    def _arrivals(self) -> dict[str, Any] | None:
        if self.concurrency is not None:
            return {"concurrency": self.concurrency}
        arrivals: dict[str, Any] = {}
        if self.rate is not None and not self.is_search:
            arrivals["rate"] = self.rate
        elif self.stages:
            arrivals["stages"] = [
                {"from": each.first, "to": each.last, "duration": each.seconds}
                for each in self.stages
            ]
        if self.gamma_cv is None:
            return arrivals or None
        if not arrivals:
            raise TrafficError("--gamma-cv goes with --rate or --stage")
        return {**arrivals, "process": "gamma", "cv": self.gamma_cv}


def read_description(path: Path) -> dict[str, Any]:
    """Return the mapping of a YAML file.

    Raises:
        TrafficError: It cannot be read, or is no mapping.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(f"{path}: {why_unreadable(error)}") from None
    except ValueError as error:
        raise TrafficError(f"{path}: is not valid YAML: {error}") from None
    if not isinstance(document, dict):
        raise TrafficError(f"{path}: must be a mapping with a generator, a trace or streams")
    return document
