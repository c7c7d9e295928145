import gc
import pickle
import sys
import weakref
from pathlib import Path
from textwrap import dedent

import pytest
from msgspec.structs import fields

from epp.config import ConfigError
from epp.config.plugin_checks import params_of
from epp.config.plugin_files import load_plugin_file
from epp.scheduling import Filter, Plugin
from epp.testing import make_endpoint, make_plugin, make_request, run_filter

GOOD = """
    from dataclasses import dataclass

    import msgspec

    from epp.scheduling import Filter


    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        pass


    @dataclass(frozen=True)
    class Note:
        text: "str"


    class KeepNone(Filter):
        def __init__(self, name: str, params: Params) -> None:
            self.name = name

        def filter(self, request, endpoints, state):
            return []
"""


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text))
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "keep.py", GOOD)


def error_of(path: Path, class_name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_plugin_file(path, class_name)
    return str(caught.value)


def kept_by(plugin: type[Plugin]) -> list[str]:
    made = make_plugin(plugin)
    assert isinstance(made, Filter)
    return run_filter(made, make_request(), [make_endpoint()])


def loaded_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith("epp_plugin_file_")}


def test_a_class_is_loaded_and_works(good: Path) -> None:
    plugin = load_plugin_file(good, "KeepNone").plugin
    assert kept_by(plugin) == []


@pytest.mark.parametrize(
    ("class_name", "want"),
    [
        ("SpotFilter", "spot-filter"),
        ("LRUScorer", "lru-scorer"),
        ("Spot2Filter", "spot2-filter"),
        ("Spot_Filter", "spot-filter"),
    ],
)
def test_without_a_type_of_its_own_a_class_is_named_in_kebab_case(
    tmp_path: Path, class_name: str, want: str
) -> None:
    path = write(tmp_path / "a.py", GOOD.replace("KeepNone", class_name))
    assert load_plugin_file(path, class_name).plugin.type == want


def test_a_type_in_the_class_is_kept_and_an_inherited_one_is_not(tmp_path: Path) -> None:
    text = (
        dedent(GOOD).replace("(Filter):\n", "(Filter):\n    type = 'given'\n")
        + "class Heir(KeepNone):\n    pass\n"
    )
    path = write(tmp_path / "a.py", text)
    assert load_plugin_file(path, "KeepNone").plugin.type == "given"
    assert load_plugin_file(path, "Heir").plugin.type == "heir"


def test_an_unchanged_file_gives_the_same_class_and_a_changed_one_a_new_class(good: Path) -> None:
    first = load_plugin_file(good, "KeepNone")
    assert load_plugin_file(good, "KeepNone") == first
    write(good, GOOD + "\n    # changed\n")
    second = load_plugin_file(good, "KeepNone")
    assert second.plugin is not first.plugin
    assert second.digest != first.digest
    assert kept_by(first.plugin) == []


def test_two_classes_of_one_file_share_its_module(tmp_path: Path) -> None:
    twice = dedent(GOOD) + "class Other(KeepNone):\n    pass\n"
    path = write(tmp_path / "a.py", twice)
    assert issubclass(
        load_plugin_file(path, "Other").plugin, load_plugin_file(path, "KeepNone").plugin
    )


def test_equal_files_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "keep.py" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        write(path, GOOD)
    one, other = (load_plugin_file(path, "KeepNone") for path in paths)
    assert one.digest == other.digest
    assert one.plugin is not other.plugin


def test_the_module_is_known_by_name_for_pickling(good: Path) -> None:
    plugin = load_plugin_file(good, "KeepNone").plugin
    note = vars(sys.modules[plugin.__module__])["Note"]("kept")
    assert pickle.loads(pickle.dumps(note)) == note


def test_a_thousand_versions_of_a_file_leave_one_module(good: Path) -> None:
    before = loaded_modules()
    text = good.read_text()
    classes: list[weakref.ref[type]] = []
    for version in range(1000):
        good.write_text(f"{text}# {version}\n")
        classes.append(weakref.ref(load_plugin_file(good, "KeepNone").plugin))
    gc.collect()
    assert len(loaded_modules() - before) == 1
    assert [each() is not None for each in classes] == [False] * 999 + [True]


def test_a_version_that_raises_leaves_the_last_good_one_in_place(good: Path) -> None:
    load_plugin_file(good, "KeepNone")
    known = loaded_modules()
    write(good, "raise RuntimeError('not yet')")
    assert "not yet" in error_of(good, "KeepNone")
    assert loaded_modules() == known


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "x = 1\ndef f(:\n", "{path}:2:7: not valid Python: invalid syntax", id="syntax"
        ),
        pytest.param(
            "x = 1\n\nx / 0\n",
            "{path}:3: it raised ZeroDivisionError: division by zero",
            id="raises",
        ),
        pytest.param(
            "import json\ndef f():\n    json.loads('')\nf()\n",
            "{path}:3: it raised JSONDecodeError: Expecting value",
            id="the line is the last one in this file, not the library's",
        ),
        pytest.param("assert False\n", "{path}:1: it raised AssertionError", id="no text"),
        pytest.param("import sys\nsys.exit(3)\n", "{path}:2: it raised SystemExit: 3", id="exits"),
        pytest.param(
            "import nowhere\n",
            "{path}:1: it raised ModuleNotFoundError: No module named 'nowhere'; modules that"
            " a plugin file imports must be installed",
            id="a package that is not installed",
        ),
        pytest.param(
            "import neighbour\n",
            "{path}:1: it raised ModuleNotFoundError: No module named 'neighbour'; a plugin file"
            " cannot import its neighbours",
            id="a file beside it",
        ),
        pytest.param(
            "from . import neighbour\n",
            "{path}:1: it raised ImportError: attempted relative import with no known parent"
            " package; a plugin file cannot import its neighbours",
            id="a relative import",
        ),
        pytest.param("x = '\0'\n", "{path}", id="a zero byte"),
        pytest.param(
            "", "{path}: there is no class 'KeepNone' in it; it has no plugin at all", id="empty"
        ),
        pytest.param(
            dedent(GOOD).replace("KeepNone", "KeepNoone"),
            "{path}: there is no class 'KeepNone' in it; did you mean 'KeepNoone'? its plugins:"
            " KeepNoone",
            id="a misspelt class",
        ),
        pytest.param("KeepNone = 3\n", "{path}: 'KeepNone' is int, not a class", id="no class"),
        pytest.param(
            "class KeepNone:\n    def filter(self, endpoints):\n        return []\n",
            "{path}:2: class 'KeepNone' is no plugin; it has a method `filter`: inherit from"
            " epp.scheduling.Filter",
            id="duck-typed",
        ),
        pytest.param(
            "class KeepNone:\n    pass\n",
            "{path}: class 'KeepNone' is no plugin; inherit from an extension point",
            id="no plugin",
        ),
        pytest.param(
            "from epp.scheduling import Filter as KeepNone\n",
            "{path}: class 'KeepNone' is imported from epp.scheduling.plugins; name it by its own"
            " file or type",
            id="another's class",
        ),
    ],
)
def test_a_fault_is_reported_with_file_and_line(tmp_path: Path, text: str, want: str) -> None:
    (tmp_path / "neighbour.py").touch()
    path = tmp_path / "keep.py"
    path.write_text(text)
    before = loaded_modules()
    assert error_of(path, "KeepNone").startswith(want.format(path=path))
    if "no class" not in want and "class '" not in want and "not a class" not in want:
        assert loaded_modules() == before


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing.py"
    assert error_of(missing, "X") == (
        f"{missing}: cannot read the plugin file: no such file or directory"
    )
    assert "is a directory" in error_of(tmp_path, "X")


def test_an_interrupt_passes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.py", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugin_file(path, "X")


def test_version_that_comes_back_while_it_is_in_use_has_the_class_it_had(good: Path) -> None:
    first = load_plugin_file(good, "KeepNone")
    good.write_text(dedent(GOOD) + "# 2\n")
    assert load_plugin_file(good, "KeepNone").plugin is not first.plugin
    write(good, GOOD)
    assert load_plugin_file(good, "KeepNone").plugin is first.plugin


def test_version_that_is_in_use_has_its_annotations_read_after_the_file_has_changed(
    good: Path,
) -> None:
    late = "from __future__ import annotations\n" + dedent(GOOD).replace(
        "forbid_unknown_fields=True):\n    pass", "forbid_unknown_fields=True):\n    x: Size = 1"
    )
    write(good, late.replace("class Params", "Size = int\n\n\nclass Params"))
    first = load_plugin_file(good, "KeepNone")
    write(good, GOOD)
    load_plugin_file(good, "KeepNone")
    assert [each.type for each in fields(params_of(first.plugin))] == [int]
    name = first.plugin.__module__
    assert name in loaded_modules()
    del first
    assert name not in loaded_modules()
