"""The package itself: its stubs, its documentation, its program, what it needs."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import upwash
from upwash import _upwash, errors
from upwash.errors import MissingPackageError

HERE = Path(upwash.__file__).parent


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_stubs_have_every_name_of_the_native_part():
    tree = ast.parse((HERE / "_upwash.pyi").read_text())
    aliases = {"Floats", "Integers", "Weights", "Path"}
    defined = (ast.FunctionDef, ast.ClassDef, ast.AnnAssign)
    names = {
        node.target.id if isinstance(node, ast.AnnAssign) else node.name
        for node in tree.body
        if isinstance(node, defined)
    }
    assert public(names) - aliases == public(dir(_upwash))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            stubbed = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            native = getattr(_upwash, node.name)
            assert public(stubbed) == public(vars(native)), node.name
            for name in public(stubbed):
                if callable(getattr(native, name)):
                    arguments = stubbed[name].args
                    expected = [argument.arg for argument in arguments.args[1:] + arguments.kwonlyargs]
                    found = [
                        name
                        for name in inspect.signature(getattr(native, name)).parameters
                        if name not in ("self", "cls")
                    ]
                    assert found == expected, f"{node.name}.{name}"


def test_everything_that_users_see_is_documented():
    undocumented = []
    for name in upwash.__all__:
        value = getattr(upwash, name)
        if inspect.isclass(value) and value.__module__.startswith("upwash"):
            undocumented += [
                f"{name}.{part}"
                for part in public(vars(value))
                if not inspect.getdoc(inspect.getattr_static(value, part))
            ]
        if not isinstance(value, str) and not inspect.getdoc(value):
            undocumented.append(name)
    # Attributes with default values are documented in the source, where `help` does not see it.
    assert [
        name for name in undocumented if callable(getattr(upwash, name.split(".")[0], None)) and is_method(name)
    ] == []


def is_method(name):
    """Whether a name such as `Graph.draw` or `Graph` is of a function, a property or a class."""
    value = upwash
    for part in name.split("."):
        value = inspect.getattr_static(value, part)
    return callable(value) or isinstance(value, (property, classmethod)) or inspect.isgetsetdescriptor(value)


def test_errors_have_one_base():
    classes = [getattr(errors, name) for name in errors.__all__ if name not in ("StopTraining", "UpwashError")]
    assert all(issubclass(each, errors.UpwashError) for each in classes)


def test_the_program_is_installed_and_is_this_version(program):
    printed = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    assert upwash.__version__ in printed
    beside = subprocess.run(
        [sys.executable, "-m", "upwash", "--version"], check=True, capture_output=True, text=True
    ).stdout
    assert beside == printed


def test_importing_needs_no_optional_package():
    code = """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {"torch", "pandas", "networkx", "matplotlib", "pyarrow", "scipy", "trackio", "wandb"}:
                    raise ImportError(name)
        sys.meta_path.insert(0, Refuse())
        import upwash
        run = upwash.train({"training.epochs": 1}, progress=False)
        assert type(run.epochs) is list and run._repr_html_() and upwash.Graph("ring:4").draw()
        for action in (upwash.Graph("ring:4").to_networkx, lambda: run.model("torch"), upwash.compare({"a": run}).plot):
            try:
                action()
            except upwash.errors.MissingPackageError as error:
                print(str(error).split("pip install")[1].split(",")[0].strip())
    """
    import textwrap

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split() == ["networkx", "torch", "matplotlib"], done.stderr


def test_missing_packages_are_import_errors():
    assert issubclass(MissingPackageError, ImportError)


@pytest.mark.parametrize("library", ["libtorch", "libmpi", "libpython"])
def test_the_native_part_links_no_large_library(library):
    linked = subprocess.run(["ldd", _upwash.__file__], capture_output=True, text=True)
    if linked.returncode != 0:
        pytest.skip("ldd is not available")
    assert library not in linked.stdout
