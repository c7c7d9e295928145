"""Tells whether the request path runs compiled.

This module is compiled with the others (``[tool.hatch.build.targets.wheel.hooks.custom]`` in
pyproject.toml), so its own file says which build is running.
"""

from typing import Final

IS_COMPILED: Final[bool] = not __file__.endswith(".py")
"""True for the wheel that mypyc has compiled in part; False for pure Python."""
