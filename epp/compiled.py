"""Whether the request path runs compiled code.

This module is compiled with the others (``[tool.hatch.build.targets.wheel.hooks.custom]`` in
pyproject.toml), so its own file says which build is running.
"""

from typing import Final

IS_COMPILED: Final[bool] = not __file__.endswith(".py")
"""True for the wheel whose request path mypyc has compiled; False for pure Python."""
