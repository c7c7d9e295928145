"""The generators of a traffic description and their fields."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.fields import DurationField, LengthsField, lengths, seconds
from epp.lab.traffic.selection import CommonFields
from epp.lab.traffic.sessions import SessionShape


class RandomFields(CommonFields, frozen=True, kw_only=True):
    """`random`: prompts that share nothing."""

    prompt_tokens: LengthsField = 512
    output_tokens: LengthsField = 64


class SharedPrefixFields(CommonFields, frozen=True, kw_only=True):
    """`shared-prefix`: groups of users with one system prompt each; conversations of one turn."""

    groups: int = 8
    group_skew: float = 0.0
    system_tokens: LengthsField = 1024
    users_per_group: int = 0
    user_tokens: LengthsField = 256
    question_tokens: LengthsField = 128
    output_tokens: LengthsField = 64


class ChatFields(CommonFields, frozen=True, kw_only=True):
    """`conversations`: each prompt is the history with all outputs, and a new question."""

    groups: int = 1
    group_skew: float = 0.0
    system_tokens: LengthsField = 256
    users_per_group: int = 0
    user_tokens: LengthsField = 256
    turns: LengthsField = "2-8"
    question_tokens: LengthsField = "lognormal:40:400"
    output_tokens: LengthsField = "lognormal:200:800"
    think_time: DurationField = 5.0


class AgentFields(CommonFields, frozen=True, kw_only=True):
    """`agents`: many short calls behind a long prompt with tools; each adds a tool's result."""

    agents: int = 4
    agent_skew: float = 0.0
    system_tokens: LengthsField = 6000
    task_tokens: LengthsField = "lognormal:200:2000"
    calls: LengthsField = "3-15"
    result_tokens: LengthsField = "lognormal:250:3000"
    output_tokens: LengthsField = "lognormal:60:400"
    tool_time: DurationField = 0.5


_Shape = Callable[[Any, str, Path], SessionShape]


def _random(fields: RandomFields, where: str, folder: Path) -> SessionShape:
    prompt = lengths(fields.prompt_tokens, f"{where}.prompt_tokens", folder)
    return SessionShape(
        first_tokens=prompt,
        later_tokens=prompt,
        output_tokens=lengths(fields.output_tokens, f"{where}.output_tokens", folder),
    )


def _shared_prefix(
    fields: SharedPrefixFields | ChatFields, where: str, folder: Path
) -> SessionShape:
    question = lengths(fields.question_tokens, f"{where}.question_tokens", folder)
    return SessionShape(
        groups=_count(fields.groups, f"{where}.groups"),
        group_skew=_skew(fields.group_skew, f"{where}.group_skew"),
        system_tokens=lengths(fields.system_tokens, f"{where}.system_tokens", folder),
        users_per_group=_count(fields.users_per_group, f"{where}.users_per_group"),
        user_tokens=lengths(fields.user_tokens, f"{where}.user_tokens", folder),
        first_tokens=question,
        later_tokens=question,
        output_tokens=lengths(fields.output_tokens, f"{where}.output_tokens", folder),
    )


def _chat(fields: ChatFields, where: str, folder: Path) -> SessionShape:
    return replace(
        _shared_prefix(fields, where, folder),
        turns=lengths(fields.turns, f"{where}.turns", folder),
        think_seconds=seconds(fields.think_time, f"{where}.think_time"),
    )


def _agents(fields: AgentFields, where: str, folder: Path) -> SessionShape:
    return SessionShape(
        groups=_count(fields.agents, f"{where}.agents"),
        group_skew=_skew(fields.agent_skew, f"{where}.agent_skew"),
        system_tokens=lengths(fields.system_tokens, f"{where}.system_tokens", folder),
        turns=lengths(fields.calls, f"{where}.calls", folder),
        first_tokens=lengths(fields.task_tokens, f"{where}.task_tokens", folder),
        later_tokens=lengths(fields.result_tokens, f"{where}.result_tokens", folder),
        output_tokens=lengths(fields.output_tokens, f"{where}.output_tokens", folder),
        think_seconds=seconds(fields.tool_time, f"{where}.tool_time"),
    )


GENERATORS: Final[dict[str, tuple[type[CommonFields], _Shape]]] = {
    "random": (RandomFields, _random),
    "shared-prefix": (SharedPrefixFields, _shared_prefix),
    "conversations": (ChatFields, _chat),
    "agents": (AgentFields, _agents),
}
"""Fields of each generator, and the function that makes a shape of them."""


def _count(value: int, where: str) -> int:
    if value < 0:
        raise TrafficError(f"{where}: {value} is below 0")
    return value


def _skew(value: float, where: str) -> float:
    if not 0 <= value < float("inf"):
        raise TrafficError(f"{where}: {value} is not a number of 0 or more")
    return value
