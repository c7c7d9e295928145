"""Each fault of a plugin class is reported with file, line, method and remedy."""

import inspect
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

import pytest

from epp.config.extension_points import extension_points, extension_points_of, import_name
from epp.config.plugin_checks import check_plugin_class, params_of
from epp.config.plugin_files import load_plugin_file
from epp.data_layer.plugins import DataSource, EndpointDiscovery
from epp.request_control.plugins import (
    Admitter,
    AsyncDataProducer,
    DataProducer,
    ResponseComplete,
)
from epp.scheduling import CompositeFilter, Filter, Picker, Plugin, ProfileHandler, Scorer

HEADER = """\
from functools import wraps
import msgspec
from epp.request_control.plugins import *
from epp.scheduling import *
class Params(msgspec.Struct, forbid_unknown_fields=True): pass
class Lenient(msgspec.Struct): pass
class Made:
    def __init__(self, name: str, params: Params): self.name = name
class Keeper(Made, Filter):
    def filter(self, request, endpoints, state): return []
def traced(method):
    @wraps(method)
    def wrapper(*args): return method(*args)
    return wrapper
"""
FIRST = HEADER.count("\n") + 1
"""The line on which the class of a row begins."""


def load(folder: Path, text: str) -> type[Plugin]:
    """Load the class ``X`` out of the header and ``text``."""
    path = folder / "plugin.py"
    path.write_text(HEADER + dedent(text).lstrip("\n"))
    return load_plugin_file(path, "X").plugin


def test_every_installed_plugin_passes() -> None:
    found = [plugin for ep in entry_points(group="epp.plugins") for plugin in ep.load()]
    assert found
    assert [fault for plugin in found for fault in check_plugin_class(plugin)] == []


def test_extension_points_are_those_of_every_layer() -> None:
    points = set(extension_points())
    assert {Filter, CompositeFilter, Scorer, Picker, ProfileHandler} <= points
    assert {Admitter, AsyncDataProducer, DataProducer, DataSource, EndpointDiscovery} <= points
    assert Plugin not in points
    assert all(inspect.isabstract(point) for point in points)


def test_the_extension_points_of_a_class_are_those_it_inherits(tmp_path: Path) -> None:
    both = load(
        tmp_path,
        """
        class X(Keeper, ResponseComplete):
            def response_complete(self, request, served_by, cause, state): pass
        """,
    )
    assert extension_points_of(both) == [Filter, ResponseComplete]
    assert check_plugin_class(both) == []


def test_extension_points_are_named_as_plugins_import_them() -> None:
    assert import_name(Filter) == "epp.scheduling.Filter"
    assert import_name(ResponseComplete) == "epp.request_control.plugins.ResponseComplete"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, _request, endpoints, _): return []
            """,
            id="unused arguments may begin with an underscore",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, request, endpoints, state, *, strict=False, **more): return []
            """,
            id="further arguments may have defaults",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, *args): return []
            """,
            id="all arguments at once",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                @staticmethod
                def filter(request, endpoints, state): return []
            """,
            id="a static method",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                @classmethod
                def filter(cls, request, endpoints, state): return []
            """,
            id="a class method",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                @traced
                def filter(self, request, endpoints, state): return []
            """,
            id="a decorated method counts as what it wraps",
        ),
        pytest.param(
            """
            class X(Keeper):
                def open(self): "Named as a method of DataSource."
            """,
            id="a helper named like another point's method, with other arguments",
        ),
        pytest.param(
            """
            class X(Made, AsyncDataProducer):
                def applies_to(self, request, state): return True
                async def prepare_async(self, request, state): pass
            """,
            id="a coroutine where one is due",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: Params, rng, refer, clock, open_page): pass
            """,
            id="every service",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: Params, *, poll_seconds=0.5, **services):
                    self.name = name
            """,
            id="arguments of its own with defaults",
        ),
    ],
)
def test_these_are_fine(tmp_path: Path, text: str) -> None:
    assert check_plugin_class(load(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "line", "want"),
    [
        pytest.param(
            """
            class X(Made, Plugin):
                def filter(self, request, endpoints, state): return []
            """,
            1,
            "X.filter: an extension point's method without its base class; inherit from"
            " epp.scheduling.Filter",
            id="duck-typed",
        ),
        pytest.param(
            """
            class X(Keeper):
                def admit(self, request, endpoints, state): pass
            """,
            1,
            "X.admit: an extension point's method without its base class; inherit from"
            " epp.request_control.plugins.Admitter",
            id="duck-typed beside a real one",
        ),
        pytest.param(
            """
            class X(Made, Plugin):
                pass
            """,
            0,
            "X: it implements no extension point; inherit from one of Admitter, AsyncDataProducer,",
            id="no extension point",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filters(self, request, endpoints, state): return []
            """,
            0,
            "X.filter: Filter needs the method `def filter(self, request, endpoints, state)` (is"
            " `filters` meant to be it?)",
            id="a misspelt method",
        ),
        pytest.param(
            """
            class X(Made, ProfileHandler):
                def pick_profiles(self, request, profiles, results, state): return {}
            """,
            0,
            "X.process_results: ProfileHandler needs the method `def process_results(self, request,"
            " results, state)`",
            id="the second method forgotten",
        ),
        pytest.param(
            """
            class X(Made, Scorer):
                def score(self, request, endpoints): return []
            """,
            1,
            "X.score: its arguments must be (request, endpoints, state): write `def score(self,"
            " request, endpoints, state)`",
            id="an argument too few",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, endpoints, request, state): return []
            """,
            1,
            "X.filter: its arguments must be (request, endpoints, state)",
            id="arguments in another order",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, request, endpoints, state, threshold): return []
            """,
            1,
            "X.filter: its arguments must be (request, endpoints, state)",
            id="an argument too many",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, *, request, endpoints, state): return []
            """,
            1,
            "X.filter: its arguments must be (request, endpoints, state)",
            id="arguments by keyword only",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                async def filter(self, request, endpoints, state): return []
            """,
            1,
            "X.filter: it must not be a coroutine: write `def filter(self, request, endpoints,"
            " state)`; asynchronous work belongs in an AsyncDataProducer",
            id="a coroutine where a plain method is due",
        ),
        pytest.param(
            """
            class X(Made, AsyncDataProducer):
                def applies_to(self, request, state): return True
                def prepare_async(self, request, state): pass
            """,
            2,
            "X.prepare_async: it must be a coroutine: write `async def prepare_async(self, request,"
            " state)`",
            id="a plain method where a coroutine is due",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                def filter(self, request, endpoints, state): yield from endpoints
            """,
            1,
            "X.filter: it must not `yield`: return the whole result from `def filter(",
            id="a generator",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                @traced
                async def filter(self, request, endpoints, state): return []
            """,
            1,
            "X.filter: it must not be a coroutine",
            id="a coroutine behind a decorator",
        ),
        pytest.param(
            """
            class X(Made, DataProducer):
                def prepare(self, request, state): pass
                def attach(self, request, state): pass
            """,
            2,
            "X.attach: its arguments must be (request, endpoints, state)",
            id="a method that need not be there",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                filter = max
            """,
            0,
            "X.filter: it must be a method: write `def filter(self, request, endpoints, state)`",
            id="a function that tells nothing of its arguments",
        ),
        pytest.param(
            """
            class X(Made, Filter):
                filter = 3
            """,
            0,
            "X.filter: it must be a method: write `def filter(self, request, endpoints, state)`",
            id="no method at all",
        ),
        pytest.param(
            """
            class X(Keeper):
                async def close(self): pass
            """,
            1,
            "X.close: it must not be a coroutine: write `def close(self)`",
            id="a coroutine to close it",
        ),
        pytest.param(
            """
            class X(Filter):
                def filter(self, request, endpoints, state): return []
            """,
            0,
            "X.__init__: its first arguments must be `name` and `params`: write `def __init__(self,"
            " name: str, params: Params)` in X",
            id="no constructor",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name): self.name = name
            """,
            1,
            "X.__init__: its first arguments must be `name` and `params`",
            id="a constructor without params",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name, params): self.name = name
            """,
            1,
            "X.__init__: `params` must be annotated with a class made of msgspec.Struct",
            id="params without an annotation",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: dict): self.name = name
            """,
            1,
            "X.__init__: `params` must be annotated with a class made of msgspec.Struct",
            id="params that are no struct",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: "Paramz"): self.name = name
            """,
            1,
            "X.__init__: its annotations cannot be read: name 'Paramz' is not defined",
            id="an annotation that is not there",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: Lenient): self.name = name
            """,
            1,
            "X.__init__: Lenient must have forbid_unknown_fields=True",
            id="params that take any field",
        ),
        pytest.param(
            """
            class Unknown(Params):
                size: "Sise" = 3
            class X(Keeper):
                def __init__(self, name: str, params: Unknown): self.name = name
            """,
            3,
            "X.__init__: the fields of Unknown cannot be read: name 'Sise' is not defined",
            id="a field of a type that is not there",
        ),
        pytest.param(
            """
            class X(Keeper):
                def __init__(self, name: str, params: Params, clocks): self.name = name
            """,
            1,
            "X.__init__: unknown service `clocks`; did you mean `clock`? known: clock, compat,"
            " metrics, open_caller, open_grpc_caller, open_page, refer, report_load, rng",
            id="an unknown service",
        ),
        pytest.param(
            """
            class X(Keeper):
                reads = StateKey("loose")
            """,
            0,
            "X: `reads` must be a tuple of keys, such as `(MY_KEY,)`",
            id="a key that is no tuple",
        ),
        pytest.param(
            """
            class X(Made, Scorer):
                score_range = (1.0, 0.0)
                def score(self, request, endpoints, state): return []
            """,
            0,
            "X: score_range is (1.0, 0.0); it must be (lowest, highest), two finite numbers",
            id="a range that is none",
        ),
    ],
)
def test_a_fault_is_reported_with_its_place(
    tmp_path: Path, text: str, line: int, want: str
) -> None:
    (fault,) = check_plugin_class(load(tmp_path, text))
    assert fault.startswith(f"{tmp_path / 'plugin.py'}:{FIRST + line}: {want}")


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    many = load(
        tmp_path,
        """
        class X(Scorer):
            def __init__(self, name): self.name = name
            async def score(self, endpoints): return []
        """,
    )
    subjects = [fault.split(": ")[1] for fault in check_plugin_class(many)]
    assert subjects == ["X.score", "X.score", "X.__init__"]


def test_a_class_without_source_is_named_by_its_module() -> None:
    made = type("Made", (Filter,), {"__module__": "nowhere"})
    assert check_plugin_class(made)[0].startswith("nowhere: Made.filter: Filter needs")


def test_the_class_of_the_parameters_is_what_the_constructor_says(tmp_path: Path) -> None:
    assert params_of(load(tmp_path, "class X(Keeper): pass")).__name__ == "Params"
