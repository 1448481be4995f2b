"""The package itself: its stubs, its documentation, its program, what it needs."""

import ast
import inspect
import shutil
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


def stubbed(function, is_method):
    """The parameters of a function in a stub: name, kind, default."""
    arguments, kinds = function.args, inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [kinds.empty] * (len(positional) - len(arguments.defaults)) + [literal(it) for it in arguments.defaults]
    found = [(it.arg, kinds.POSITIONAL_OR_KEYWORD, default) for it, default in zip(positional, defaults, strict=True)]
    for it, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((it.arg, kinds.KEYWORD_ONLY, kinds.empty if default is None else literal(default)))
    return found[1:] if is_method else found


def literal(node):
    return ast.literal_eval(node)


def native(function):
    """The parameters of a native function."""
    parameters = inspect.signature(function).parameters.values()
    return [(it.name, it.kind, it.default) for it in parameters if it.name not in ("self", "cls")]


def test_stubs_have_every_name_and_signature_of_the_native_part():
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
        if isinstance(node, ast.FunctionDef):
            assert stubbed(node, is_method=False) == native(getattr(_upwash, node.name)), node.name
        if isinstance(node, ast.ClassDef):
            methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
            cls = getattr(_upwash, node.name)
            assert public(methods) == public(vars(cls)), node.name
            if "__new__" in methods:
                assert stubbed(methods["__new__"], is_method=True) == native(cls), node.name
            for name in public(methods):
                is_property = any(ast.unparse(it) == "property" for it in methods[name].decorator_list)
                assert is_property != callable(getattr(cls, name)), f"{node.name}.{name}"
                if not is_property:
                    expected = stubbed(methods[name], is_method=True)
                    assert native(getattr(cls, name)) == expected, f"{node.name}.{name}"


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
        graph, plot = upwash.Graph("ring:4"), upwash.compare({"a": run}).plot
        for action in (graph.to_networkx, lambda: run.model("torch"), plot, lambda: __import__("upwash.torch")):
            try:
                action()
            except upwash.errors.MissingPackageError as error:
                print(str(error).split("pip install")[1].split(",")[0].strip())
    """
    import textwrap

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split() == ["networkx", "torch", "matplotlib", "torch"], done.stderr


def test_missing_packages_are_import_errors():
    assert issubclass(MissingPackageError, ImportError)


@pytest.mark.parametrize("library", ["libtorch", "libmpi", "libpython"])
def test_the_native_part_links_no_large_library(library):
    tool = next((tool for tool in (["ldd"], ["otool", "-L"]) if shutil.which(tool[0])), None)
    if tool is None:
        pytest.skip("neither ldd nor otool is available")
    linked = subprocess.run([*tool, _upwash.__file__], capture_output=True, text=True)
    assert linked.returncode == 0, linked.stderr
    assert library not in linked.stdout
