"""Mend findings in the text of a file; comments and the order of fields survive."""

from epp.doctor.fixes.fixing import Fixed, mend
from epp.doctor.fixes.yaml_places import FixError

__all__ = ["FixError", "Fixed", "mend"]
