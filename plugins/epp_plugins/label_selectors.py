"""Label selectors with the semantics of Kubernetes (``metav1.LabelSelectorAsSelector``).

A selector matches if all its ``matchLabels`` and all its ``matchExpressions`` match. An empty
selector matches everything, a missing one (None) nothing. Selectors that Kubernetes refuses are
refused when the parameters are read, so that the error names the place. A selector may also be a
text, as in ``kubectl --selector`` (``labels.Parse``).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

Labels = Mapping[str, str]
Matches = Callable[[Labels], bool]

_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_OPERATORS = (*_WITH_VALUES, *_WITHOUT_VALUES)

_REQUIREMENT = re.compile(
    r"\s*(?:!\s*(?P<absent>[^\s,=!<>()]+)"
    r"|(?P<key>[^\s,=!<>()]+)(?:\s*(?P<sign>==|=|!=|<|>)\s*(?P<value>[^\s,=!<>()]*)"
    r"|\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?P<end>,|\Z)"
)
"""One of the comma-separated conditions of a selector as text."""

_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_MAX_NAME = 63
_MAX_PREFIX = 253
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class LabelRequirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One of ``matchExpressions``."""

    key: str
    """Name of the label."""
    operator: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(_OPERATORS)})]
    """``In`` and ``Exists`` require the label; the others also match if it is absent."""
    values: tuple[str, ...] = ()
    """Values for ``In`` and ``NotIn``, at least one."""

    def __post_init__(self) -> None:
        _check_key("key", self.key)
        _check_values("values", self.values)
        if self.operator not in _OPERATORS:
            known = ", ".join(_OPERATORS)
            raise ValueError(f"operator {self.operator!r} is none of {known}")
        if self.operator in _WITH_VALUES and not self.values:
            raise ValueError(f"values is empty, but operator {self.operator} needs at least one")
        if self.operator in _WITHOUT_VALUES and self.values:
            raise ValueError(f"values must be left out with operator {self.operator}")


class LabelSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A Kubernetes label selector."""

    match_labels: dict[str, str] = {}
    """Labels and values that an endpoint must have."""
    match_expressions: tuple[LabelRequirement, ...] = ()
    """Further conditions on the labels."""

    def __post_init__(self) -> None:
        for key in self.match_labels:
            _check_key("matchLabels key", key)
        _check_values("matchLabels value", self.match_labels.values())


def matcher_of(selector: LabelSelector | None) -> Matches:
    """Return a function that tests whether labels match the selector."""
    if selector is None:
        return lambda labels: False
    tests = [_value_in(key, frozenset((value,))) for key, value in selector.match_labels.items()]
    tests += [_test_of(requirement) for requirement in selector.match_expressions]
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def matcher_of_text(text: str) -> Matches:
    """Return a function that tests whether labels match a selector as text.

    The conditions, all of which must hold, are ``a=b``, ``a==b``, ``a!=b``, ``a in (b,c)``,
    ``a notin (b,c)``, ``a``, ``!a``, ``a>1`` and ``a<1``. As with ``matchExpressions``, ``!=`` and
    ``notin`` also match if the label is absent.

    Raises:
        ValueError: The text is not a valid selector.
    """
    tests: list[Matches] = []
    position, is_complete = 0, False
    while not is_complete:
        found = _REQUIREMENT.match(text, position)
        if found is None:
            raise ValueError(
                f"{text!r} is no label selector: cannot read {text[position:]!r}; conditions are"
                " `a=b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a` and `!a`, separated by commas"
            )
        tests.append(_test_of_condition(found))
        position, is_complete = found.end(), not found["end"]
    return lambda labels: all(test(labels) for test in tests)


def _test_of_condition(found: re.Match[str]) -> Matches:
    if found["absent"]:
        return _test_of(LabelRequirement(found["absent"], "DoesNotExist"))
    key, sign, word = found["key"], found["sign"], found["word"]
    if sign in {"<", ">"}:
        return _compared(key, sign, found["value"])
    if sign:
        return _test_of(LabelRequirement(key, "NotIn" if sign == "!=" else "In", (found["value"],)))
    if word:
        values = tuple(each.strip() for each in found["values"].split(","))
        return _test_of(LabelRequirement(key, "NotIn" if word == "notin" else "In", values))
    return _test_of(LabelRequirement(key, "Exists"))


def _compared(key: str, sign: str, text: str) -> Matches:
    """Return a test whether the label ``key`` is a whole number above or below ``text``."""
    _check_key("key", key)
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number, but the label {key!r} is compared with it")
    limit = int(text)

    def matches(labels: Labels) -> bool:
        value = labels.get(key, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > limit if sign == ">" else int(value) < limit

    return matches


def _test_of(requirement: LabelRequirement) -> Matches:
    key, values = requirement.key, frozenset(requirement.values)
    match requirement.operator:
        case "In":
            return _value_in(key, values)
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case "Exists":
            return lambda labels: key in labels
        case _:
            return lambda labels: key not in labels


def _value_in(key: str, values: frozenset[str]) -> Matches:
    return lambda labels: labels.get(key) in values


def _check_key(field: str, key: str) -> None:
    """Raise ValueError unless ``key`` is a qualified name: ``name`` or ``dns.prefix/name``."""
    prefix, slash, name = key.rpartition("/")
    if not (len(name) <= _MAX_NAME and _NAME.fullmatch(name)):
        raise ValueError(
            f"{field} {key!r} is no label name: it must be 1 to {_MAX_NAME} letters, digits, '-',"
            " '_' and '.', with a letter or digit at both ends, after an optional 'prefix/'"
        )
    if slash and not (len(prefix) <= _MAX_PREFIX and _SUBDOMAIN.fullmatch(prefix)):
        raise ValueError(
            f"{field} {key!r} is no label name: what stands before '/' must be a lower-case DNS"
            f" name of at most {_MAX_PREFIX} characters"
        )


def _check_values(field: str, values: Iterable[str]) -> None:
    for value in values:
        if value and not (len(value) <= _MAX_NAME and _NAME.fullmatch(value)):
            raise ValueError(
                f"{field} {value!r} is no label value: it must be empty or up to {_MAX_NAME}"
                " letters, digits, '-', '_' and '.', with a letter or digit at both ends"
            )
