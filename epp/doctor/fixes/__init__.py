"""Fixes findings in the text of a file; comments and the order of fields are preserved."""

from epp.doctor.fixes.fields import FixError, fixed_field
from epp.doctor.fixes.fixing import Fixed, mend

__all__ = ["FixError", "Fixed", "fixed_field", "mend"]
