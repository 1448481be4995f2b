"""Runs of several ranks under mpirun, with the second extension module."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import upwash

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("upwash._upwash_mpi") is None, reason="built without MPI"),
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun"),
]

SMALL = {"graph.topology": "ring:4", "training": {"epochs": 2}}


def mpirun(ranks, code, timeout=120):
    """Runs code in every rank."""
    prelude = f"import upwash\nSMALL = {SMALL!r}\n"
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, "-c", prelude + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def test_ranks_give_the_results_of_one_process(tmp_path):
    one = upwash.train(SMALL, progress=False)
    done = mpirun(
        3,
        f"""
        class Dpsgd(upwash.Algorithm):
            def plan(self, view):
                return view.weights()
        run = upwash.train(SMALL, out={str(tmp_path / "run")!r}, transport="mpi")
        import os, pathlib
        # A file for each rank: mpirun may mix what they print.
        result = pathlib.Path({str(tmp_path)!r}, f"result-{{os.getpid()}}")
        result.write_text(f"{{run.status}} {{run.summary.mean_accuracy}}")
    """,
    )
    assert done.returncode == 0, done.stderr
    results = [path.read_text() for path in tmp_path.glob("result-*")]
    assert results == [f"finished {one.summary.mean_accuracy}"] * 3
    run = upwash.load(tmp_path / "run")[0]
    assert run.summary.per_worker[3].to_dict() == one.summary.per_worker[3].to_dict()


def test_an_algorithm_and_data_in_python_run_on_every_rank(tmp_path):
    code = """
        import numpy as np
        values = np.random.default_rng(0).integers(0, 256, (64, 4, 4))
        data = upwash.Dataset((values, np.arange(64) % 4), (values, np.arange(64) % 4))
        class Dpsgd(upwash.Algorithm):
            def plan(self, view):
                return view.weights()
    """
    train = f"""
        upwash.train(SMALL, data=data, algorithm=Dpsgd(), out={str(tmp_path / "run")!r}, transport="mpi", progress=False)
    """
    done = mpirun(2, code + train)
    assert done.returncode == 0, done.stderr
    names = {"upwash": upwash}
    exec(textwrap.dedent(code), names)
    one = upwash.train(SMALL, data=names["data"], algorithm=names["Dpsgd"](), progress=False)
    assert upwash.load(tmp_path / "run")[0].summary.mean_accuracy == one.summary.mean_accuracy


def test_an_exception_in_one_rank_ends_the_job_with_its_traceback(tmp_path):
    done = mpirun(
        2,
        f"""
        class Broken(upwash.Algorithm):
            def plan(self, view):
                if view.worker == 3 and view.round == 5:
                    raise ZeroDivisionError("in my plan")
                return view.weights()
        upwash.train(SMALL, algorithm=Broken(), out={str(tmp_path / "run")!r}, transport="mpi", progress=False)
    """,
    )
    assert done.returncode != 0
    assert "ZeroDivisionError: in my plan" in done.stderr
    assert "line" in done.stderr and "in plan" in done.stderr


def test_a_panic_in_one_rank_ends_the_job_with_its_text(tmp_path):
    done = mpirun(
        2,
        f"""
        class Panics(upwash.Algorithm):
            def plan(self, view):
                if view.worker == 3 and view.round == 5:
                    # As if Rust code had panicked: pyo3 panics when it sees this exception.
                    kinds = [kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"]
                    raise kinds[-1]("a test")
                return view.weights()
        from upwash import _upwash_mpi
        try:
            _upwash_mpi.Graph("no graph")
        except upwash.errors.GraphError:
            pass  # pyo3 creates its exception when it sees the first one
        upwash.train(SMALL, algorithm=Panics(), out={str(tmp_path / "run")!r}, transport="mpi", progress=False)
    """,
    )
    assert done.returncode != 0
    assert "InternalError: an error in upwash itself" in done.stderr, done.stderr


def test_a_second_run_in_one_process_is_refused(tmp_path):
    done = mpirun(
        1,
        f"""
        for name in "ab":
            try:
                upwash.train(SMALL, out={str(tmp_path)!r} + name, transport="mpi", progress=False)
                print("finished")
            except upwash.errors.RunError as error:
                print(error)
    """,
    )
    assert done.stdout.startswith("finished\nMPI ends with the first run"), done.stderr


def test_the_folder_must_be_named():
    with pytest.raises(upwash.errors.ConfigError, match="out="):
        upwash.train(SMALL, transport="mpi")
