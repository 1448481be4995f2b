"""The optimizer's step and the exchange of a round, eagerly or as CUDA graphs."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from ._fleet_capture import WARM_UP, CaptureError, Recorder, warn_eager
from ._fleet_mixing import Numbers, Program, Store, carry_out

MAX_STRUCTURES = 8
"""The most graphs for exchanges of different structure."""


class Update:
    """Takes the steps of a round, and carries out its exchanges."""

    def __init__(self, optimizer: torch.optim.Optimizer, store: Store) -> None:
        self._optimizer, self._store = optimizer, store
        self._step: CapturedStep | None = None
        self._exchange: CapturedExchange | None = None

    def use_graphs(self, recorder: Recorder) -> None:
        """Captures what can be captured, from now on."""
        self._step = CapturedStep(self._optimizer, recorder, self._store.model.device)
        self._exchange = CapturedExchange(self._store, recorder)

    @property
    def captured(self) -> dict[str, bool]:
        step, exchange = self._step, self._exchange
        return {
            "optimizer": step is not None and step.graph is not None,
            "exchange": exchange is not None and exchange.is_in_use,
        }

    @torch.no_grad()
    def take_steps(self, needs_step: bool) -> None:
        """Takes every worker's step, in place; if needed, the steps are put aside."""
        store = self._store
        if needs_step:
            store.steps.copy_(store.model)
        if self._step is None:
            self._optimizer.step()
        else:
            self._step.run()
        if needs_step:
            store.separate_steps()

    def exchange(self, program: Program) -> None:
        """Carries out the exchanges of a program."""
        if program.is_empty:
            return
        if self._exchange is None or not self._exchange.run(program):
            device = self._store.model.device
            numbers, integers = torch.from_numpy(program.numbers), torch.from_numpy(program.integers)
            carry_out(program.operations, self._store, Numbers(numbers.to(device), integers.to(device)))

    def load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Loads a state of the optimizer, and keeps what decides how it computes."""
        loaded: dict[str, Any] = copy.deepcopy(dict(state))
        for saved, group in zip(loaded["param_groups"], self._optimizer.param_groups, strict=False):
            saved.update({key: group[key] for key in ("capturable", "fused", "foreach") if key in group})
        self._optimizer.load_state_dict(loaded)
        if self._step is not None:
            self._step.forget()


class CapturedStep:
    """The step of an optimizer as a graph, in which rates are tensors."""

    def __init__(self, optimizer: torch.optim.Optimizer, recorder: Recorder, device: torch.device) -> None:
        self._optimizer, self._recorder, self._device = optimizer, recorder, device
        self.graph: Any = None
        self._rounds, self._captures = 0, 0
        self._rates: list[torch.Tensor] = []
        self._copied: list[float] = []
        self._options: list[dict[str, Any]] = []
        self._is_eager = False
        for group in optimizer.param_groups:
            if group.get("foreach") is None and group.get("fused", True) is None:
                # One kernel for many tensors, which reads the rate on the device.
                group["fused"] = True
            if "capturable" in group:
                group["capturable"] = True
        optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]
        if reason := self._obstacle():
            self._give_up(reason)

    def _obstacle(self) -> str | None:
        """Why the step cannot be captured, as far as that is known beforehand."""
        name = type(self._optimizer).__name__
        is_sgd = type(self._optimizer) is torch.optim.SGD
        for group in self._optimizer.param_groups:
            if not (is_sgd and group.get("fused")) and "capturable" not in group:
                return f"{name} has no option capturable, so that it may keep numbers in Python"
        if self._optimizer._optimizer_step_pre_hooks or self._optimizer._optimizer_step_post_hooks:
            return f"{name} has hooks, which a graph does not call"
        return None

    def _give_up(self, reason: object) -> None:
        self.graph, self._is_eager = None, True
        warn_eager("the optimizer's step", reason)

    def forget(self) -> None:
        """Forgets the graph, because the optimizer has other tensors now."""
        self.graph, self._rounds, self._captures = None, 0, 0

    def run(self) -> None:
        """Takes the step."""
        if self._is_eager:
            self._optimizer.step()
            return
        if self.graph is not None and self._options != self._current_options():
            self.graph = None
        if self.graph is None and self._rounds >= WARM_UP:
            self._capture()
        self._rounds += 1
        if self.graph is None:
            self._recorder.warm_up(self._optimizer.step)
            return
        self._copy_rates()
        self.graph.replay()

    def _capture(self) -> None:
        groups = self._optimizer.param_groups
        self._captures += 1
        if self._captures > MAX_STRUCTURES:
            self._give_up("options other than the learning rate change often")
            return
        self._copied = [float(group["lr"]) for group in groups]
        self._rates = [torch.tensor(rate, device=self._device) for rate in self._copied]
        self._options = self._current_options()
        try:
            self.graph = self._recorder.capture(self._step_with_rates)
        except CaptureError as error:
            self._give_up(error)

    def _step_with_rates(self) -> None:
        """The step, with the rates that are on the device. Others see numbers."""
        groups = self._optimizer.param_groups
        before = [group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
            self._optimizer.step()
        finally:
            for group, rate in zip(groups, before, strict=True):
                group["lr"] = rate

    def _copy_rates(self) -> None:
        for index, group in enumerate(self._optimizer.param_groups):
            rate = float(group["lr"])
            if rate != self._copied[index]:
                self._copied[index] = rate
                self._rates[index].fill_(rate)

    def _current_options(self) -> list[dict[str, Any]]:
        """The options that a graph keeps as they were."""
        kinds = (int, float, str, tuple, type(None))
        return [
            {key: value for key, value in group.items() if key != "lr" and isinstance(value, kinds)}
            for group in self._optimizer.param_groups
        ]


class _Structure:
    """An exchange of one structure, and the memory of its numbers."""

    def __init__(self, program: Program, recorder: Recorder, device: torch.device) -> None:
        parts = (program.numbers, program.integers)
        self._staged = [recorder.pinned(torch.from_numpy(part.copy())) for part in parts]
        self._parts = [torch.empty_like(part, device=device) for part in self._staged]
        self.operations = program.operations
        self.is_warm = False
        self.graph: Any = None

    def load(self, program: Program) -> None:
        # The copy of the last round is complete: the losses of this one were read after it.
        for staged, part, values in zip(self._staged, self._parts, (program.numbers, program.integers), strict=True):
            if len(values):
                staged.numpy()[:] = values
                part.copy_(staged, non_blocking=True)

    def numbers(self) -> Numbers:
        return Numbers(*self._parts)


class CapturedExchange:
    """Exchanges as graphs, one for each structure."""

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store, self._recorder = store, recorder
        self._structures: dict[Any, _Structure] = {}
        self._failed = self._is_full = False

    @property
    def is_in_use(self) -> bool:
        """Whether exchanges run as graphs, apart from those of the first rounds."""
        return not self._is_full and any(structure.graph is not None for structure in self._structures.values())

    def run(self, program: Program) -> bool:
        """Carries out a program; False if it must be carried out without a graph."""
        if self._failed:
            return False
        key = program.structure
        structure = self._structures.get(key)
        if structure is None:
            if len(self._structures) >= MAX_STRUCTURES:
                self._say_that_it_is_full()
                return False
            structure = self._structures[key] = _Structure(program, self._recorder, self._store.model.device)
        structure.load(program)
        if structure.graph is None and structure.is_warm:
            try:
                structure.graph = self._recorder.capture(lambda: self._run(structure))
            except CaptureError as error:
                self._failed = True
                self._structures.clear()
                warn_eager("the exchange", error)
                return False
        if structure.graph is None:
            structure.is_warm = True
            self._recorder.warm_up(lambda: self._run(structure))
        else:
            structure.graph.replay()
        return True

    def _say_that_it_is_full(self) -> None:
        if not self._is_full:
            self._is_full = True
            why = f"there are graphs for {MAX_STRUCTURES} exchanges of another structure already"
            warn_eager("an exchange", f"{why}; the results are the same, and the other exchanges still run as graphs")

    def _run(self, structure: _Structure) -> None:
        carry_out(structure.operations, self._store, structure.numbers())
