"""Changes the field of a finding, in Envoy's configuration or the EndpointPickerConfig."""

import re
from typing import Final

from epp.doctor.errors import DoctorError
from epp.doctor.tree import proto_name
from epp.inputs.yaml_edits import edited, has_field
from epp.inputs.yaml_places import EditError

_STEP: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")
_OF_STATIC_RESOURCES: Final = frozenset({"listeners", "clusters"})
_STATIC_RESOURCES: Final = "static_resources"


class FixError(DoctorError):
    """A field cannot be changed automatically; the text says why."""


def fixed_field(text: str, path: str, value: str | None) -> str:
    """Return ``text`` with a field set.

    Args:
        text: YAML or JSON.
        path: Path of the field as in findings, such as ``clusters[epp].circuit_breakers``.
        value: New value as JSON; None to remove the field.

    Raises:
        FixError: The field cannot be changed without changing something else.
    """
    steps = tuple(name or item for name, item in _STEP.findall(path))
    try:
        if steps[0] in _OF_STATIC_RESOURCES:
            if not has_field(text, _STATIC_RESOURCES, other_name=proto_name):
                raise FixError("the file is no bootstrap, with which an Envoy starts")
            steps = (_STATIC_RESOURCES, *steps)
        return edited(text, steps, value, other_name=proto_name)
    except EditError as error:
        raise FixError(str(error)) from None
