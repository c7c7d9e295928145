"""plugins/examples installs like any package, in an environment of its own, and works."""

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "plugins" / "examples"
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: max-prompt-filter
  parameters: {maxPromptBytes: 32768}
- type: label-preference-scorer
  parameters: {label: capacity, scores: {spot: 1.0}}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that sees this one's packages, with the example package installed in it."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    # addsitedir, not only the paths: the endpoint picker itself may be installed by a .pth there.
    ours = [path for path in site.getsitepackages() if Path(path).is_dir()]
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
    (packages / "tested.pth").write_text("\n".join(lines) + "\n")
    # A copy: the build leaves files beside the sources.
    source = shutil.copytree(EXAMPLES, tmp_path_factory.mktemp("source") / "examples")
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(python, "-m", "pip", "install", "--disable-pip-version-check", *options, str(source))
    return python


def run(python: Path, *args: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), *args],
        cwd=python.parent,
        env=environment | {"COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_plugins_are_listed_beside_ours(python: Path) -> None:
    listed = run(python, "-m", "epp", "plugins", "list")
    assert "max-prompt-filter" in listed
    assert "label-preference-scorer" in listed
    assert "queue-scorer" in listed


def test_it_is_installed_there_and_not_here(python: Path) -> None:
    where = run(python, "-c", "import epp_example_plugins as found; print(found.__file__)")
    assert Path(where).is_relative_to(python.parents[1])
    assert "epp_example_plugins" not in sys.modules


def test_a_configuration_names_them_by_type(python: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    run(python, "-m", "epp", "config", "check", str(config))


def test_its_own_tests_pass(python: Path) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", str(EXAMPLES))
    assert " passed" in run(python, "-m", "pytest", *options, str(EXAMPLES / "tests"))
