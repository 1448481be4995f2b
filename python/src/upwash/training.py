"""Runs: `upwash.train`."""

import atexit
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from tqdm import TqdmWarning

from . import _config, _upwash
from ._ending import end
from ._records import Record
from ._temporary import TemporaryFolder
from .algorithm import Algorithm
from .data import Dataset, dataset_of
from .errors import AlgorithmError, ConfigError, MissingPackageError, StopTraining
from .run import Run

with warnings.catch_warnings():
    # In a notebook without ipywidgets, the bar is text.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

__all__ = ["train"]

Callback = Callable[[Record], object]

_WAIT = 0.05
"""Seconds between two looks for Ctrl-C."""


def train(
    config: _config.Config | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    data: Dataset | Any = None,
    algorithm: Algorithm | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    progress: bool | None = None,
    threads: int | None = None,
    transport: str | None = None,
) -> Run:
    """Trains as a configuration says, and returns the run.

    >>> run = upwash.train({"graph.topology": "ring:4", "training": {"epochs": 2}}, progress=False)
    >>> run.status, run.summary.workers
    ('finished', 4)

    Args:
        config: a dict with the keys of a configuration file, in which `{"training.epochs": 2}` is short for
            `{"training": {"epochs": 2}}`; or the path of a TOML file. Every key has a default. A graph can be an
            `upwash.Graph`: `{"graph": graph}`.
        overrides: values that replace those of `config`, for example `{"training.epochs": 2}`.
        out: the folder for results. Without it they are kept in a temporary folder as long as the run is in use;
            `run.save` keeps them.
        resume: continue the run in `out`, or start it if there is none. A run that is over is not run again.
        data: a data set in place of a named one: an `upwash.Dataset`, or what `upwash.Dataset.of` takes.
        algorithm: an algorithm in place of a named one.
        callbacks: functions that are called with every event, on this thread. The run waits for them. They may raise
            `upwash.StopTraining` to end it; any other exception ends it as well, and is raised. A callback that has a
            method `close` is closed when the run has ended, however it has.
        progress: show a progress bar. By default, in a terminal and in a notebook. Warnings of the run are a `UserWarning`
            in any case.
        threads: the number of threads; the result does not depend on it. By default, one for each core.
        transport: `"mpi"` for the ranks of a job: `mpirun -n 4 python script.py`, in which each process calls this function
            with the same arguments and the same `out`. It needs the second extension module, which is built where `mpicc`
            is found. MPI ends with the run, so a process runs once. An error in one rank ends the job.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the run has ended after its current round and written a checkpoint. A note
            says how to continue.
        UpwashError: of the class that fits; see `upwash.errors`.
    """
    callbacks = (callbacks,) if callable(callbacks) else tuple(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(f"callbacks: {callback!r} cannot be called")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int)):
        raise TypeError(f"threads: expected a whole number, not {threads!r}")
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigError(f"threads = {threads}: must be from 1 to 1024")
    if out is not None and not os.fspath(out):
        raise ConfigError('out = "": name a folder')
    if resume and out is None:
        raise ConfigError("resume: name the folder of the run with out=")
    native = _module(transport)
    if transport is not None and out is None:
        raise ConfigError("transport: name the folder of the run with out=, the same for all processes")
    read = _config.read(config, overrides)
    temporary = None
    if out is None:
        temporary = TemporaryFolder("upwash-run-")
        out = temporary.path
    dataset = None if data is None else dataset_of(data)._for(native)
    with read.naming_file():
        session = native.Session(
            read.toml,
            read.assignments,
            read.files,
            dataset=dataset,
            algorithm=algorithm,
            output=os.fspath(out),
            resume=resume,
            threads=threads,
            every_event=bool(callbacks),
            transport=transport,
        )
    bar = _Progress(progress if session.rank == 0 else False, warns=session.rank == 0)
    _running.add(session)
    try:
        with _Closing(callbacks):
            try:
                _follow(session, callbacks, bar, read)
            except BaseException as error:
                _say_how_to_continue(session, error, out, temporary)
                raise
    finally:
        _running.discard(session)
    return Run(out, temporary=temporary)


def _module(transport: str | None) -> Any:
    """The native module for a transport."""
    if transport is None:
        return _upwash
    if transport != "mpi":
        raise ConfigError(f'transport {transport!r} is unknown: write "mpi", or leave it out for one process')
    try:
        return importlib.import_module("._upwash_mpi", __package__)
    except ImportError as error:
        raise MissingPackageError(
            f"the extension module for MPI cannot be imported ({error}): install MPI and libclang (on Debian libopenmpi-dev, "
            "openmpi-bin and libclang-dev), and then this package again"
        ) from error


def _follow(
    session: _upwash.Session, callbacks: Iterable[Callback], bar: "_Progress", read: _config.ReadConfig
) -> None:
    """Follows a run to its end, or until a callback stops it."""
    try:
        with bar:
            while (line := session.next_event(_WAIT)) is not None:
                if line:
                    event = Record(json.loads(line))
                    bar.show(event)
                    for callback in callbacks:
                        callback(event)
    except StopTraining:
        _end(session)
        return
    try:
        with read.naming_file():
            while session.result(_WAIT) is None:
                pass
    except StopTraining as error:
        raise AlgorithmError(
            "the algorithm raised StopTraining, which ends a run only from a callback: "
            "upwash.train(..., callbacks=function)"
        ) from error


def _say_how_to_continue(
    session: _upwash.Session, error: BaseException, out: str | os.PathLike[str], temporary: TemporaryFolder | None
) -> None:
    """Ends a run because of an error on this thread. A note at the error says how to continue the run."""
    try:
        if not _end(session):
            return  # the error is that of the run
    except Exception as failure:
        error.add_note(f"upwash: the run ended with an error: {failure}")
        return
    note = f"upwash: to continue the run: upwash.train(..., out={os.fspath(out)!r}, resume=True)"
    if temporary is not None:
        _kept.append(temporary)
        note += "; this process removes the folder when it ends: name another one with out= to keep a run"
    error.add_note(note)


_kept: list[TemporaryFolder] = []
"""The folders of interrupted runs that were not given one."""


def _end(session: _upwash.Session) -> bool:
    """Ends a run after its current round. Returns whether this call has ended it."""
    session.stop()
    while True:
        try:
            while session.result(_WAIT) is None:
                pass
            return True
        except KeyboardInterrupt:
            # Pressed again: the algorithm may not return.
            session.is_planning(raises=True)
        except Exception as failure:
            if "already ended" in str(failure):
                return False
            raise


class _Closing:
    """Closes callbacks that can be closed, such as trackers, when a run has ended, however it has."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = callbacks
        self._process = os.getpid()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # A child that a callback has forked leaves the trackers to its parent.
        for callback in self._callbacks if os.getpid() == self._process else ():
            close = getattr(callback, "close", None)
            try:
                if callable(close):
                    close()
            except Exception as failure:
                if error is None:
                    raise
                error.add_note(f"upwash: {callback!r} cannot be closed: {failure}")


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get_ipython and get_ipython(), "kernel", None) is not None


class _Progress:
    """A progress bar in a terminal or a notebook, and the warnings of a run."""

    def __init__(self, shown: bool | None, warns: bool = True) -> None:
        # If `disable` is None, tqdm shows nothing unless there is a terminal. A kernel has none, and without ipywidgets the
        # bar is text there as well.
        self._disable = None if shown is None and not _is_notebook() else shown is False
        self._warns = warns
        self._bar: Any = None

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, event: Record) -> None:
        match event.event:
            case "started":
                total, done = event.rounds, event.round
                if self._bar is None:
                    self._bar = tqdm(total=total, initial=done, disable=self._disable, unit="round", leave=False)
                self._bar.set_description(event.algorithm)
            case "round" if self._bar is not None:
                self._bar.update(event.round + 1 - self._bar.n)
            case "epoch" if self._bar is not None and event["test_accuracies"] is not None:
                accuracies = event.to_dict()["test_accuracies"]
                known = [accuracy for accuracy in accuracies if accuracy is not None]
                if known:
                    self._bar.set_postfix(epoch=event.epoch, accuracy=f"{100 * sum(known) / len(known):.2f} %")
            case "warning" if self._warns:
                # Of the line that called `upwash.train`.
                warnings.warn(event.message, UserWarning, stacklevel=4)


_running: set[_upwash.Session] = set()


def _end_all() -> None:
    """Ends runs before the interpreter."""
    for session in list(_running):
        try:
            session.stop()
            end(session, lambda session=session: session.result(_WAIT) is not None)  # type: ignore[misc]
        except BaseException:
            pass


atexit.register(_end_all)
