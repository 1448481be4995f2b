"""An existing training loop as one worker of a decentralized run."""

import atexit
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import _config, _exit_code, _upwash
from .._ending import end
from .._processes import Launched, peers_of
from .._records import Record
from ..algorithm import Algorithm
from ..errors import ConfigError, RunError, UpwashError
from ..training import _module
from ._flat import Flat, check_trained, statistics_of, trainable

__all__ = ["Decentralized", "RunEnded"]

_log = logging.getLogger("upwash")


class RunEnded(UpwashError):
    """The run has ended, so this worker takes no further step. `status` says why: `finished`, `interrupted`, `isolated` or
    `diverged`."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Decentralized(torch.optim.Optimizer):
    """An optimizer whose every step is followed by an exchange of models with neighbors.

    Each process trains one worker of a graph. It computes gradients and takes the steps of the wrapped optimizer as before;
    then its model is mixed with those of its neighbors, as the algorithm says.

    >>> import torch, upwash.torch as ut
    >>> model = torch.nn.Linear(4, 2)
    >>> opt = ut.Decentralized(torch.optim.AdamW(model.parameters(), 3e-4), model, graph="complete:1", algorithm="dpsgd")
    >>> for _ in range(3):
    ...     opt.zero_grad()
    ...     loss = model(torch.ones(8, 4)).square().mean()
    ...     loss.backward()
    ...     opt.step(loss=loss)
    >>> opt.close()

    Start eight of them on this machine with `python -m upwash.launch -n 8 script.py`. On several machines, run the script on
    each, with a configuration that lists all workers in `network.peers` and the key of the own one. Without either, the
    process is the only worker: then the script trains as it did before.

    Start all workers with the same seed, so that their models are equal; the first exchanges would otherwise average
    unrelated models. Give each its own data: `upwash.Sampler(labels, opt.workers, opt.worker, batch_size)`.

    Args:
        optimizer: the optimizer of the loop. A step is the difference that it makes to the model, so any will do.
        model: the model, on its device, in float32. Its trained parameters become views into one vector. Only they travel
            to other workers, and, with `statistics="averaged"`, the running statistics of batch normalization.
        config: a configuration, as for `upwash.train`: a dict or the path of a TOML file. What it says about models, data,
            optimizers and learning rates does not count: the loop has its own.
        graph: the graph of the workers, for example `"ring:8"`, or an `upwash.Graph`. By default a ring.
        algorithm: the name of an algorithm, a dict with its options, or an `upwash.Algorithm`. Asynchronous algorithms, and
            those that own the momentum (`decentlam`, `qg-momentum`), are refused.
        overlap: send models before the gradient is computed, so that the exchange takes place meanwhile: the option
            `overlap` of D-PSGD, and of what builds on it.
        statistics: `"local"` (the default) or `"averaged"` running statistics of batch normalization.
        rounds: the number of steps of the run. Without it, the run ends with `close`.
        rounds_per_epoch: after how many steps `upwash show` and reports count an epoch, for example `len(loader)`.
        batch_size: the number of examples in a batch, for reports.
        out: the folder for configuration, events and summary; peers have a folder `peer-N` each in it.
        key: the file with the private key of this worker; by default, what the variable `UPWASH_KEY` names.
        transport: `"mpi"` for the ranks of a job: `mpirun -n 8 python script.py`.
        threads: the number of threads that mix models; by default one.
        overrides: values that replace those of `config`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        config: _config.Config | None = None,
        *,
        graph: Any = None,
        algorithm: str | Mapping[str, Any] | Algorithm | None = None,
        overlap: bool | None = None,
        statistics: str | None = None,
        rounds: int | None = None,
        rounds_per_epoch: int = 100,
        batch_size: int = 1,
        out: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        transport: str | None = None,
        threads: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        _check_arguments(optimizer, model, rounds, rounds_per_epoch, batch_size)
        self._inner = optimizer
        parameters = trainable(model, optimizer)
        device = parameters[0].get().device
        own = _own(overrides, graph, algorithm, overlap, statistics)
        read = _config.read(config, own)
        with read.naming_file():
            peers, key = peers_of(read, key, transport, has_graph=graph is not None)
        native = _module("mpi" if transport == "mpi" else None)
        self._parameters = Flat(parameters, device)
        self._statistics = Flat(statistics_of(model, device), device)
        self._launched = Launched()
        with read.naming_file():
            self._node = native.NativeNode(
                read.toml,
                read.assignments,
                read.files,
                algorithm=algorithm if isinstance(algorithm, Algorithm) else None,
                model_name=type(model).__name__,
                data_name="loop",
                optimizer_name=type(optimizer).__name__,
                parameters=[(slot.name, slot.shape) for slot in parameters],
                buffers=[(slot.name, slot.shape) for slot in self._statistics.slots],
                model=self._parameters.host.numpy(),
                statistics=self._statistics.host.numpy(),
                rounds=rounds,
                rounds_per_epoch=rounds_per_epoch,
                batch_size=batch_size,
                key=key,
                output=None if out is None else os.fspath(out),
                threads=threads,
                transport=transport or ("peers" if peers else None),
            )
        self._temporary = read.temporary
        self._rounds = rounds
        self._round = 0
        self._is_begun = False
        # Whether another worker's model has replaced this one's since the last step.
        self._is_stale = False
        self._rate: float | None = None
        self._is_broken = False
        self._last_trouble = ""
        self._status: str | None = None
        self._summary: Record | None = None
        self._is_closed = False
        _workers.add(self)
        _exit_code.watch()

    # The state is that of the wrapped optimizer, for learning-rate schedulers and everything else that looks at it.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of the wrapped optimizer."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimizer."""
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the wrapped optimizer."""
        return self._inner.defaults

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The wrapped optimizer."""
        return self._inner

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        return self._node.worker

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self._node.workers

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return self._node.algorithm

    @property
    def round(self) -> int:
        """The round in progress, or the next one. A worker that comes back continues at the round of the others."""
        return self._round

    @property
    def status(self) -> str | None:
        """How the run ended: `finished`, `interrupted`, `isolated` or `diverged`; None while it goes on."""
        return self._status

    @property
    def summary(self) -> Record | None:
        """The summary of the run, once `close` has ended it."""
        return self._summary

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients. In the first call, and after each step, it begins the next round: that is when this worker
        takes the model of the others if it comes back after a restart, and when messages leave with `overlap`."""
        if self._status is None and not self._is_closed:
            self._begin()
        self._inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:  # type: ignore[override]
        """Takes a step of the wrapped optimizer, exchanges models with neighbors, and mixes them.

        Args:
            closure: as for the wrapped optimizer.
            loss: the loss of the batch, a number or a tensor of one element. Algorithms that follow the best neighbor, such
                as AL-DSGD, need it; reports show it.
        """
        self._launched.check()
        _exit_code.go_on()
        if self._status is not None:
            raise self._ended()
        if loss is None and closure is None and self._node.needs_losses and self._node.trains:
            raise ConfigError(f"{self.algorithm} goes by the losses of the workers: call step(loss=loss)")
        value, self._rate = _number(loss), _rate(self.param_groups)
        self._parameters.check()
        self._statistics.check()
        check_trained(self._parameters.slots, self._inner)
        self._begin()
        if self._status is not None:
            raise self._ended()
        self._parameters.to_host()
        self._node.save()
        # A gradient may be that of a model that was replaced since: the step is then zero, as one that AMP skips. A closure
        # computes a new one.
        is_stale = self._is_stale and closure is None
        result, is_skipped = (None, True) if is_stale or not self._node.trains else self._take_step(closure)
        if closure is not None and loss is None:
            value = _number(result)
        if is_stale or is_skipped and value is not None and not math.isfinite(value):
            value = None
        self._parameters.to_host()
        self._statistics.to_host()
        self._is_begun, self._is_stale = False, False
        status = self._call(self._node.finish, value, self._rate)
        self._parameters.from_host()
        self._statistics.from_host()
        self._report()
        self._round += 1
        self._set_status(status)
        if self._status is not None:
            raise self._ended()
        return result

    def _take_step(self, closure: Callable[[], Any] | None) -> tuple[Any, bool]:
        """A step of the wrapped optimizer, and whether it was skipped: `torch.amp.GradScaler` leaves that to this class."""
        found_inf, scaler = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) > 0:
            return None, True
        if scaler is not None:
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / float(scaler))
        return (self._inner.step() if closure is None else self._inner.step(closure)), False

    _step_supports_amp_scaling = True

    def _begin(self) -> None:
        """Begins the round unless it has begun, with another worker's model if this one comes back."""
        if self._is_begun:
            return
        self._parameters.to_host()
        self._statistics.to_host()
        self._round, is_adopted, status = self._call(self._node.begin)
        self._is_begun = True
        if is_adopted:
            self._is_stale = True
            self._parameters.from_host()
            self._statistics.from_host()
        self._report()
        self._set_status(status)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the worker. After an error or Ctrl-C, the run does not count as finished."""
        try:
            return method(*arguments)
        except BaseException:
            self._is_broken = True
            raise

    def _set_status(self, status: str | None) -> None:
        if status is not None:
            self._status = json.loads(status)["status"]

    def _ended(self) -> RunEnded:
        status = str(self._status)
        text = {
            "finished": f"all {self._rounds} rounds of the run have been run: for more steps, raise rounds=",
            "interrupted": f"the end of the run was requested before round {self._round}",
            "isolated": f"no other worker was in reach for network.isolation_seconds, before round {self._round}: check that "
            "all have the same script, model and configuration, and start this worker again if any other still runs"
            + (f" (the last that was heard: {self._last_trouble})" if self._last_trouble else ""),
            "diverged": "the loss is not a number: use a smaller learning rate",
        }
        return RunEnded(status, text.get(status, f"the run has ended: {status}"))

    def _report(self) -> None:
        """Passes on warnings, and logs what happened to other workers."""
        for line in self._node.take_events():
            event = Record(json.loads(line))
            if event.event == "warning":
                warnings.warn(event.message, UserWarning, stacklevel=4)
                continue
            change = event["change"]
            change = change.to_dict() if isinstance(change, Record) else change
            text = json.dumps(change)
            is_trouble = any(word in text for word in ("missing", "lost", "refused", "waiting", "fetch-failed"))
            if is_trouble:
                self._last_trouble = text
            _log.log(logging.WARNING if is_trouble else logging.INFO, "worker %d: %s", self.worker, text)

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped optimizer, and under `"upwash"` what this worker needs to resume: its progress and the
        algorithm's state vectors. Save it with the model's, between two steps."""
        progress, vectors = self._node.snapshot()
        arrays = {name: torch.from_numpy(vector) for name, vector in vectors.items()}
        return {**self._inner.state_dict(), "upwash": {"progress": progress, "vectors": arrays, "rate": self._rate}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a state, before the first step. Load the model first. The state of an optimizer that was not
        wrapped is taken as well; the run then begins at round 0."""
        state = dict(state_dict)
        own = state.pop("upwash", None)
        if own is not None:
            if self._round or self._is_begun:
                raise ConfigError(
                    "load_state_dict after the first step: load the state right after creating Decentralized"
                )
            self._parameters.to_host()
            vectors = {name: vector.detach().cpu().numpy() for name, vector in own["vectors"].items()}
            self._rate = own["rate"]
            self._node.restore(own["progress"], vectors, self._rate)
            self._round = int(json.loads(own["progress"])["round"])
        self._inner.load_state_dict(state)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible: the other workers expect the same parameters as before."""
        if hasattr(self, "_node"):
            raise ConfigError("parameters cannot be added to a run: give them to the optimizer before Decentralized")

    def close(self) -> None:
        """Ends the run of this worker, leaves the others, and writes the summary. Called at the end of the program as well;
        in a `with` block, at its end. A run counts as interrupted if rounds are left, or if the program ends with an
        exception or a nonzero `sys.exit`."""
        is_complete = self._rounds is None or self._round >= self._rounds
        self._close(is_finished=is_complete and not self._is_broken)

    def _close(self, *, is_finished: bool) -> None:
        if self._is_closed or self._launched.is_forked():
            return
        self._is_closed = True
        _workers.discard(self)
        self._parameters.to_host()
        self._statistics.to_host()
        summary = self._node.end(is_finished=is_finished)
        self._report()
        self._summary = None if summary is None else Record(json.loads(summary))

    def _leave(self, has_failed: bool) -> bool:
        """Ends the run at the end of the interpreter. False while another thread is using the worker."""
        try:
            if has_failed:
                self._close(is_finished=False)
            else:
                self.close()
        except RunError as error:
            if "another thread" not in str(error):
                raise
            # It takes no further step then.
            self._status, self._is_closed = self._status or "interrupted", False
            return False
        return True

    def __enter__(self) -> "Decentralized":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, SystemExit) and not _exit_code.is_failure(error.code):
            self.close()
        else:
            self._close(is_finished=False)

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Registers a hook of the wrapped optimizer."""
        return self._inner.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """Registers a hook of the wrapped optimizer. The exchange follows it."""
        return self._inner.register_step_post_hook(hook)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("Decentralized is bound to its process: pickle its state_dict()")

    def __repr__(self) -> str:
        inner = type(self._inner).__name__
        return f"Decentralized({inner}, worker {self.worker} of {self.workers}, {self.algorithm})"


# A worker stays until it is closed, also if the function that made it has returned. Forked children have a copy of this set,
# and `Launched` tells them apart.
_workers: set[Decentralized] = set()


def _close_all() -> None:
    """Ends runs before the interpreter: their threads must not outlive it."""
    is_raised = getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None
    has_failed = is_raised or _exit_code.has_failed()
    for worker in list(_workers):
        try:
            end(worker._node, lambda worker=worker: worker._leave(has_failed))  # type: ignore[misc]
        except Exception as error:
            print(f"upwash: worker {worker.worker} could not end its run: {error}", file=sys.stderr)


atexit.register(_close_all)


def _check_arguments(optimizer: Any, model: Any, rounds: Any, rounds_per_epoch: Any, batch_size: Any) -> None:
    if isinstance(optimizer, Decentralized):
        raise ConfigError("this optimizer is wrapped already: wrap one optimizer once")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: expected an optimizer of PyTorch, not {type(optimizer).__name__}")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, not {type(model).__name__}")
    if any(worker._inner is optimizer for worker in _workers):
        raise ConfigError(
            "this optimizer is used by another Decentralized: close it first, or create another optimizer"
        )
    for name, value in (("rounds", rounds), ("rounds_per_epoch", rounds_per_epoch), ("batch_size", batch_size)):
        if value is None and name == "rounds":
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: expected an integer, not {value!r}")
        if not 1 <= value < 1 << 40:
            raise ConfigError(f"{name} = {value}: must be at least 1")


def _own(
    overrides: Mapping[str, Any] | None,
    graph: Any,
    algorithm: str | Mapping[str, Any] | Algorithm | None,
    overlap: bool | None,
    statistics: str | None,
) -> dict[str, Any]:
    """What the arguments say, as overrides of the configuration."""
    own = dict(overrides or {})
    if graph is not None:
        own["graph" if isinstance(graph, (Mapping, _upwash.Graph)) else "graph.topology"] = graph
    if isinstance(algorithm, str):
        own["algorithm.name"] = algorithm
    elif isinstance(algorithm, Mapping):
        own["algorithm"] = dict(algorithm)
    elif algorithm is not None and not isinstance(algorithm, Algorithm):
        raise TypeError(f"algorithm: expected a name, a dict or an upwash.Algorithm, not {type(algorithm).__name__}")
    if overlap is not None:
        own["algorithm.overlap"] = overlap
    if statistics is not None:
        own["training.statistics"] = statistics
    return own


def _rate(groups: list[dict[str, Any]]) -> float:
    """The learning rate of the first parameter group; 0 for an optimizer without one."""
    rate = groups[0].get("lr")
    return 0.0 if rate is None else float(rate)


def _number(loss: Any) -> float | None:
    """A loss as a number. Reading one from a GPU waits for its computation."""
    if loss is None:
        return None
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            raise ConfigError(f"loss: expected one number, not a tensor of shape {tuple(loss.shape)}")
        return float(loss.detach())
    return float(loss)
