"""Several replicas of a module on one device, which exchange models as an algorithm says.

One class; its documentation makes the file long.
"""

import atexit
import copy
import json
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from .. import _config, _upwash
from .._ending import end
from .._records import Record, of_json
from ..algorithm import Algorithm
from ..errors import ConfigError, RunError
from ._fleet_batches import Batches
from ._fleet_capture import Recorder
from ._fleet_checks import check_counts, check_one_device, checked_optimizer, compiled, default_graph
from ._fleet_gradients import Gradient, Gradients
from ._fleet_mixing import Program, Store
from ._fleet_optimizer import Update
from ._fleet_vectors import (
    Place,
    Rows,
    check_alike,
    check_places,
    running_statistics,
    set_buffer,
    trained_parameters,
)


class Fleet:
    """Replicas of a module on one device, one for each worker, trained together.

    >>> import torch
    >>> from upwash.torch import Fleet
    >>> fleet = Fleet(lambda: torch.nn.Linear(4, 2), workers=4, graph="ring:4", algorithm="dpsgd")
    >>> x, y = torch.randn(4, 16, 4), torch.randint(0, 2, (4, 16))
    >>> for _ in range(10):
    ...     losses = fleet.step(x, y, torch.nn.functional.cross_entropy)
    >>> losses.shape, fleet.round
    (torch.Size([4]), 10)
    >>> fleet.average()
    Linear(in_features=4, out_features=2, bias=True)

    A step computes every replica's loss and gradient on its own batch, takes a step of the optimizer, and exchanges
    models. Every synchronous algorithm works with every optimizer, because a worker's step is its model before the
    optimizer's step minus the model after it. On a CUDA device all of this is captured as CUDA graphs, with a stream for every
    replica; what cannot be captured runs eagerly, and a warning says why.

    Args:
        make_model: makes a module, a new one in every call. PyTorch's random generators are seeded before each
            call, and put back afterwards.
        workers: the number of workers, including a server if the algorithm has one. By default, that of the graph.
        graph: the notation of a graph, or an `upwash.Graph`. By default that of `config`, else `paper:L1` for 8
            workers and a ring for other numbers.
        algorithm: the name of an algorithm, or an `upwash.Algorithm`. By default that of `config`, else `al-dsgd`.
        base: the algorithm that this one is put on, for `al-dsgd` and `slowmo`.
        optimizer: makes the optimizer for the parameters of all replicas. It is called once.
        device: the device of all replicas. By default, where `make_model` puts them.
        config: a configuration, as for `upwash.train`. Model, data and optimizer are those of the fleet.
        overrides: values that replace those of `config`.
        compile: compile every replica with `torch.compile`; a dict has options for it, such as
            `{"backend": "aot_eager"}`.
        capture: capture CUDA graphs. By default, on CUDA.
        statistics: batch-norm running statistics: `local`, or `averaged` with the neighbors in every round.
        autocast: compute losses under `torch.autocast` with this type, such as `torch.bfloat16`.
        equal_start: start from equal models. By default, as the algorithm recommends.
        rounds: the number of rounds, if it is known.
        rounds_per_epoch: the number of rounds after which events report an epoch.
        out: a folder for the run, which `upwash show`, `report` and `watch` read.
        seed: the seed of random choices.
        options: options of the algorithm, such as `budget=0.25`.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        workers: int | None = None,
        graph: "str | _upwash.Graph | None" = None,
        algorithm: str | Algorithm | None = None,
        base: str | None = None,
        *,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = lambda params: torch.optim.SGD(params, 0.01),
        device: str | torch.device | None = None,
        config: _config.Config | None = None,
        overrides: Mapping[str, Any] | None = None,
        compile: bool | Mapping[str, Any] = False,
        capture: bool | None = None,
        statistics: str | None = None,
        autocast: torch.dtype | None = None,
        equal_start: bool | None = None,
        rounds: int | None = None,
        rounds_per_epoch: int = 100,
        out: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        check_counts(rounds=rounds, rounds_per_epoch=rounds_per_epoch, workers=workers)
        own = algorithm if isinstance(algorithm, Algorithm) else None
        if algorithm is not None and own is None and not isinstance(algorithm, str):
            raise TypeError(f"algorithm: a name or an instance of upwash.Algorithm, not {type(algorithm).__name__}")
        settings: dict[str, Any] = {
            "workers": workers,
            "graph.topology": graph if graph is not None or config is not None else default_graph(workers),
            "algorithm.name": None if own else algorithm,
            "algorithm.base": base,
            "training.statistics": statistics,
            "training.start": None if equal_start is None else ("equal" if equal_start else "different"),
            "seed": seed,
            **{f"algorithm.{key}": value for key, value in options.items()},
        }
        changes = {key: value for key, value in settings.items() if value is not None}
        self._read = _config.read(config, changes | dict(overrides or {}))
        self._algorithm, self._rounds, self._rounds_per_epoch = own, rounds, rounds_per_epoch
        self._planner = self._new_planner()
        self.config: dict[str, Any] = json.loads(_upwash.json_of_toml(self._planner.config_toml))
        """The configuration, with every default written out."""
        self._out, self._progress, self._is_started, self._has_begun = out, None, False, False
        self._ended: str | None = None
        self._completed = 0
        self._rate: float | None = None
        self._name = ""
        self._is_broken = self._has_failed = False
        for message in self._planner.warnings:
            warnings.warn(message, UserWarning, stacklevel=2)
        self.models = self._make_models(make_model, device)
        self._lay_out(optimizer)
        callables = compiled(self.models, compile)
        uses_graphs = self.device.type == "cuda" if capture is None else capture
        if uses_graphs and self.device.type != "cuda":
            raise ConfigError(f"capture=True: CUDA graphs need a CUDA device, not {self.device.type}")
        trained = [callables[row] for row in self._trained]
        self._gradients = Gradients(trained, self._gradient_rows.matrix, self._gradient_views, autocast)
        self._update = Update(self.optimizer, self._store)
        if uses_graphs:
            recorder = Recorder(self.device)
            self._gradients.use_graphs(recorder)
            self._update.use_graphs(recorder)
        self.summary: Record | None = None
        """The summary of the run, once it is closed."""
        _open.add(self)

    def _new_planner(self) -> "_upwash.Planner":
        read = self._read
        with read.naming_file():
            return _upwash.Planner(
                read.toml,
                read.assignments,
                read.files,
                algorithm=self._algorithm,
                rounds=self._rounds,
                rounds_per_epoch=self._rounds_per_epoch,
            )

    def _make_models(self, make_model: Callable[[], nn.Module], device: str | torch.device | None) -> list[nn.Module]:
        """A replica for every worker."""
        models: list[nn.Module] = []
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(list(devices)):
            for worker in range(self.workers):
                seed = (self.config["seed"] << 16) + worker
                torch.default_generator.manual_seed(seed)
                if devices:
                    torch.cuda.manual_seed_all(seed)
                model = make_model()
                if not isinstance(model, nn.Module):
                    raise TypeError(f"make_model: returned a {type(model).__name__}, not a torch.nn.Module")
                if any(model is other for other in models):
                    raise ConfigError("make_model: returned the same module twice: build a new one in every call")
                models.append(model)
        check_alike(models)
        if device is not None:
            models = [model.to(device) for model in models]
        else:
            check_one_device(models)
        if self._planner.starts_equal:
            for model in models[1:]:
                model.load_state_dict(models[0].state_dict())
        self._name = type(models[0]).__name__
        return models

    def _lay_out(self, optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """Makes every parameter, gradient and running statistic a view into the row of its replica."""
        parameters = [trained_parameters(model, replica) for replica, model in enumerate(self.models)]
        if any(own.keys() != parameters[0].keys() for own in parameters):
            raise ConfigError("make_model: replicas differ in which parameters require a gradient")
        self.device = next(iter(parameters[0].values())).device
        self._trained = [worker for worker in range(self.workers) if worker != self._planner.server]
        rows = Rows.of({name: tensor.data for name, tensor in parameters[0].items()}, self.workers, self.device)
        self._gradient_rows = rows.like()
        kept = [running_statistics(model) for model in self.models]
        statistics = Rows.of(kept[0], self.workers, self.device)
        gradients: list[list[Gradient]] = [[] for _ in self.models]
        for row, model in enumerate(self.models):
            for slot in rows.slots:
                parameter, view = parameters[row][slot.name], rows.view(row, slot)
                view.copy_(parameter.data)
                parameter.data = view
                parameter.grad = gradient = self._gradient_rows.view(row, slot)
                gradients[row].append((parameter, gradient))
            for slot in statistics.slots:
                view = statistics.view(row, slot)
                view.copy_(kept[row][slot.name])
                set_buffer(model, slot.name, view)
        names = [slot.name for slot in rows.slots + statistics.slots]
        self._places = [[Place.of(model, name) for name in names] for model in self.models]
        self._checks = 0
        vectors = self._planner.state_vectors
        states = [rows.matrix.clone() if start == "model" else torch.zeros_like(rows.matrix) for _, start in vectors]
        self._store = Store(rows, statistics, states)
        self._gradient_views = [gradients[row] for row in self._trained]
        trained = [parameter for row in self._trained for parameter in parameters[row].values()]
        self.optimizer = checked_optimizer(optimizer(trained), trained)
        """The optimizer of all replicas. Learning-rate schedulers take it as any other."""

    @property
    def workers(self) -> int:
        """The number of workers, including a server."""
        return self._planner.workers

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in reports."""
        return self._planner.algorithm

    @property
    def round(self) -> int:
        """The number of rounds that are complete."""
        return self._completed

    @property
    def is_over(self) -> bool:
        """Whether no round is left: `rounds` are complete, or the stop button of `upwash watch` has ended the run."""
        if self._ended is None and self._is_started:
            self._begin()
        return self._ended is not None

    @property
    def captured(self) -> dict[str, bool]:
        """Which parts of a step run as CUDA graphs: `gradients`, `optimizer`, `exchange`.

        A part is False as well if it has more forms than there are graphs, so that it runs eagerly in some rounds.
        """
        return {"gradients": self._gradients.is_captured, **self._update.captured}

    def step(self, *arguments: Any) -> torch.Tensor:
        """Runs a round, and returns the loss of every worker that has data, on the CPU.

        `step(x, y, loss)` computes `loss(model(x[i]), y[i])` for every replica i: x and y are tensors whose first
        dimension is the number of workers that train, or lists with an entry for each. `step(batches, loss)` computes
        `loss(model, batches[i])`: batches are anything, and the tensors in them may be in dicts and lists.

        Raises:
            RunError: the run is over, or a loss is not a number.
        """
        batches, loss = Batches.read(arguments, len(self._trained))
        self._check_usable()
        if not self._is_started:
            self._start(batches.examples)
        self._begin()
        if self._ended is not None:
            raise RunError(
                f"the run is over ({self._ended}) after {self.round} rounds: check fleet.is_over before a step"
            )
        self._is_broken = True
        losses = self._gradients.compute(batches, loss)
        known: list[float | None] = [None] * self.workers
        for row, value in zip(self._trained, losses.tolist(), strict=True):
            known[row] = value
        self._rate = float(self.optimizer.param_groups[0]["lr"])
        work = self._ask(self._planner.finish, known, batches.examples, self._rate)
        self._has_begun = False
        if work["status"] is not None:
            self._ended = work["status"]
            self._is_broken = False
            self.close()
            raise RunError(f"the run has {self._ended}: a lower learning rate may help")
        self._update.take_steps(work["needs_step"])
        while True:
            if work["exchanges"]:
                self._update.exchange(Program(work["exchanges"]))
            if work["question"] is None:
                break
            work = self._ask(self._planner.answer, self._measure(work["question"]))
        self._completed += 1
        self._is_broken = False
        return losses

    def _check_usable(self) -> None:
        if self.summary is not None:
            raise RunError("the fleet is closed: create another one")
        if self._is_broken:
            raise RunError("the last step was interrupted halfway: load a state_dict before the next one")
        # One replica each time: a check of all would take as long as a small step.
        replica = self._checks % self.workers
        check_places(self._places[replica], replica)
        self._checks += 1

    def _begin(self) -> None:
        if not self._has_begun and self._ended is None:
            self._ended = self._ask(self._planner.begin)
            self._has_begun = self._ended is None

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Asks the planner. After an error it has ended."""
        try:
            return method(*arguments)
        except Exception:
            self._has_failed = True
            raise

    def _start(self, examples: int) -> None:
        rows, statistics = self._store.models, self._store.statistics
        self._planner.start(
            model=self._name,
            optimizer=type(self.optimizer).__name__,
            parameters=[(slot.name, list(slot.shape)) for slot in rows.slots],
            statistics=[(slot.name, list(slot.shape)) for slot in statistics.slots],
            batch_size=examples,
            output=None if self._out is None else os.fspath(self._out),
            progress=self._progress,
            rate=self._rate,
        )
        self._is_started = True

    @torch.no_grad()
    def _measure(self, question: tuple[str, list[tuple[int, int]], Any]) -> list[float]:
        """What the planner asks about the models."""
        kind, rows, contents = question
        if kind == "consensus_distance":
            return [self._consensus_distance([row for row, _ in rows])]
        weights = torch.from_numpy(contents).to(self.device, torch.float32)
        messages = torch.zeros_like(self._store.vector(0))
        for column in range(weights.shape[1]):
            if bool(contents[:, column].any()):
                messages += self._store.vector(column) * weights[:, column, None]
        distances = [torch.linalg.vector_norm(messages[a] - messages[b], dtype=torch.float64) for a, b in rows]
        return torch.stack(distances).tolist() if distances else []

    def _consensus_distance(self, rows: Sequence[int]) -> float:
        models = self._store.model[list(rows)]
        distances = models - models.mean(0)
        return float((distances.pow_(2).sum(dtype=torch.float64) / len(rows)).sqrt())

    @torch.no_grad()
    def consensus_distance(self) -> float:
        """The root mean square distance of the workers' models from their average."""
        return self._consensus_distance(self._trained)

    @torch.no_grad()
    def _averaged(self, rows: Rows, workers: Sequence[int]) -> torch.Tensor:
        return rows.matrix[list(workers)].mean(0, dtype=torch.float64).to(torch.float32)

    @torch.no_grad()
    def average(self) -> nn.Module:
        """A new module with the average of all replicas' parameters and running statistics.

        With a server, its parameters are the result. Other buffers and frozen parameters are those of the first
        replica.
        """
        module = copy.deepcopy(self.models[0])
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        for rows, tensors, workers in (
            (self._store.models, parameters, self._resulting),
            (self._store.statistics, buffers, self._trained),
        ):
            row = self._averaged(rows, workers)
            for slot in rows.slots:
                values = row[slot.offset :][: slot.size].as_strided(slot.shape, slot.stride)
                tensors[slot.name].data.copy_(values)
        return module

    @property
    def _resulting(self) -> list[int]:
        """The workers whose average is the result."""
        return self._trained if self._planner.server is None else [self._planner.server]

    @torch.no_grad()
    def evaluate(self, score: Callable[[nn.Module], Any]) -> list[Any]:
        """`score(module)` of every replica that trains, in evaluation mode and without gradients."""
        scores = []
        for row in self._trained:
            model = self.models[row]
            was_training = model.training
            model.eval()
            try:
                scores.append(score(model))
            finally:
                model.train(was_training)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """What is needed to continue: models, optimizer, the algorithm's vectors and its progress."""
        self._check_usable()
        names = [name for name, _ in self._planner.state_vectors]
        return {
            "algorithm": self.algorithm,
            "models": [model.state_dict() for model in self.models],
            "optimizer": self.optimizer.state_dict(),
            "vectors": dict(zip(names, self._store.states, strict=True)),
            "progress": self._planner.progress() if self._is_started else self._progress,
            "rate": self._rate,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict` of a fleet with the same configuration. In `out`, later rounds are removed."""
        missing = {"algorithm", "models", "optimizer", "vectors", "progress", "rate"} - state.keys()
        if missing:
            raise ConfigError(
                f"load_state_dict: {', '.join(sorted(missing))} missing: give what Fleet.state_dict returned"
            )
        if state["algorithm"] != self.algorithm:
            raise ConfigError(
                f"load_state_dict: the state is of {state['algorithm']}, but the fleet runs {self.algorithm}"
            )
        if len(state["models"]) != self.workers:
            raise ConfigError(
                f"load_state_dict: the state is of {len(state['models'])} workers, but the fleet has {self.workers}"
            )
        names = [name for name, _ in self._planner.state_vectors]
        for name in names:
            saved = state["vectors"].get(name)
            if saved is None or saved.shape != self._store.model.shape:
                raise ConfigError(f"load_state_dict: the vector {name!r} is missing or of another model")
        try:
            for model, saved in zip(self.models, state["models"], strict=True):
                model.load_state_dict(saved)
        except RuntimeError as error:
            raise ConfigError(f"load_state_dict: {error}") from error
        self._update.load_optimizer(state["optimizer"])
        with torch.no_grad():
            for name, vector in zip(names, self._store.states, strict=True):
                vector.copy_(state["vectors"][name])
        if self._is_started and not self._has_failed and self.summary is None:
            self._end(None)
        self._planner, self.summary = self._new_planner(), None
        self._progress, self._is_started, self._has_begun = state["progress"], False, False
        self._rate = state["rate"]
        self._ended, self._is_broken, self._has_failed = None, False, False
        self._completed = json.loads(self._progress)["round"] if self._progress else 0
        _open.add(self)

    def close(self, *, interrupted: bool = False) -> None:
        """Ends the run: writes its summary and the averaged model into `out`. No step follows."""
        _open.discard(self)
        if not self._is_started or self._has_failed or self.summary is not None:
            return
        is_early = self._rounds is not None and self.round < self._rounds
        if interrupted or is_early or self._is_broken:
            self._end(None)
            return
        rows, statistics = self._store.models, self._store.statistics
        average = rows.unpadded(self._averaged(rows, self._resulting)).cpu().numpy()
        kept = statistics.unpadded(self._averaged(statistics, self._trained)).cpu().numpy()
        self._end((average, kept))

    def _leave(self) -> bool:
        """Interrupts the run at the end of the interpreter. False while another thread is using the fleet."""
        # It takes no further step then.
        self._ended = self._ended or "interrupted"
        try:
            self.close(interrupted=True)
        except RunError as error:
            return "another thread" not in str(error)
        return True

    def _end(self, averaged: tuple[Any, Any] | None) -> None:
        answer = self._planner.end(*(averaged or (None, None)))
        while isinstance(answer, dict):
            answer = self._planner.answer_end(self._measure(answer["question"]))
        self.summary = of_json(answer)

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(interrupted=error is not None)

    def __repr__(self) -> str:
        return f"<upwash.torch.Fleet of {self.workers} {self._name}: {self.algorithm}, {self.round} rounds>"


_open: "weakref.WeakSet[Fleet]" = weakref.WeakSet()


def _close_all() -> None:
    """Interrupts runs that were not closed, before the interpreter ends."""
    for fleet in list(_open):
        try:
            end(fleet._planner, fleet._leave)
        except BaseException:
            pass


atexit.register(_close_all)
