"""The batches of a step: one for every worker that trains."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from ..errors import DataError

Loss = Callable[[Any, Any], torch.Tensor]
"""The loss of a module on a batch."""


class Batches:
    """Batches, as tensors with a row for each worker or as one structure for each."""

    def __init__(self, stacked: tuple[torch.Tensor, ...] | None, batches: Sequence[Any]) -> None:
        self._stacked = stacked
        self.batches = batches

    @classmethod
    def read(cls, arguments: Sequence[Any], workers: int) -> tuple["Batches", Loss]:
        """The batches and the loss among the arguments of a step."""
        if len(arguments) == 3:
            *parts, loss = arguments
            if not callable(loss):
                raise TypeError(f"step(x, y, loss): loss is a {type(loss).__name__}, not a function")
            for name, part in zip("xy", parts, strict=True):
                _check(name, part, workers)
            batches = list(zip(*parts, strict=True))
            stacked = tuple(parts) if all(isinstance(part, torch.Tensor) for part in parts) else None
            return cls(stacked, batches), _OfOutput(loss)
        if len(arguments) == 2:
            given, loss = arguments
            if not callable(loss):
                raise TypeError(f"step(batches, loss): loss is a {type(loss).__name__}, not a function")
            _check("batches", given, workers)
            stacked = (given,) if isinstance(given, torch.Tensor) else None
            return cls(stacked, list(given)), loss
        raise TypeError("step takes (x, y, loss), with loss(output, y), or (batches, loss), with loss(module, batch)")

    @property
    def examples(self) -> int:
        """The number of examples of a worker: the length of the first tensor of its batch."""
        for leaf in _pytree.tree_leaves(self.batches[0]):
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
                return max(1, len(leaf))
        return 1

    @property
    def key(self) -> tuple[Any, ...]:
        """What all batches of the same form have in common."""
        if self._stacked is not None:
            return tuple((tensor.shape, tensor.dtype, tensor.stride()) for tensor in self._stacked)
        found: list[Any] = []
        for batch in self.batches:
            leaves, structure = _pytree.tree_flatten(batch)
            found.append((str(structure), *map(_form, leaves)))
        return tuple(found)

    def on(self, device: torch.device) -> list[Any]:
        """The batches on a device."""
        if self._stacked is not None:
            return self._of(tuple(tensor.to(device, non_blocking=True) for tensor in self._stacked))
        return _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), self.batches)

    def _of(self, stacked: tuple[torch.Tensor, ...]) -> list[Any]:
        rows = list(zip(*(tensor.unbind(0) for tensor in stacked), strict=True))
        return rows if isinstance(self.batches[0], tuple) else [row for (row,) in rows]

    def reserve(self, device: torch.device) -> "Batches":
        """Room on a device for batches of this form."""

        def room(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(tensor, device=device)

        if self._stacked is not None:
            stacked = tuple(map(room, self._stacked))
            return Batches(stacked, self._of(stacked))
        return Batches(None, _pytree.tree_map_only(torch.Tensor, room, self.batches))

    @torch.no_grad()
    def load(self, batches: "Batches") -> None:
        """Copies batches of the same form into this room."""
        own, given = self._tensors(), batches._tensors()
        for tensor, values in zip(own, given, strict=True):
            tensor.copy_(values, non_blocking=True)

    def _tensors(self) -> list[torch.Tensor]:
        if self._stacked is not None:
            return list(self._stacked)
        return [leaf for leaf in _pytree.tree_leaves(self.batches) if isinstance(leaf, torch.Tensor)]


class _OfOutput:
    """The loss of a module's output."""

    def __init__(self, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        self.loss = loss

    def __call__(self, module: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        return self.loss(module(x), y)


def _check(name: str, part: Any, workers: int) -> None:
    if isinstance(part, torch.Tensor):
        found = part.shape[0] if part.dim() else 0
        if found != workers:
            raise DataError(
                f"{name}: a tensor of shape {tuple(part.shape)}, but {workers} workers train: its first dimension "
                f"must be {workers}"
            )
    elif not isinstance(part, (list, tuple)):
        raise TypeError(f"{name}: a tensor or a list with an entry for each worker, not {type(part).__name__}")
    elif len(part) != workers:
        raise DataError(f"{name}: {len(part)} entries, but {workers} workers train: give one for each")


def _form(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.dtype, leaf.stride())
    return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else id(leaf)


def identity(function: Any) -> Any:
    """What two functions have in common that compute the same: a graph of one is a graph of the other.

    >>> def loss(weight):
    ...     return lambda model, batch: weight * model(batch).mean()
    >>> identity(loss(2.0)) == identity(loss(2.0)), identity(loss(2.0)) == identity(loss(3.0))
    (True, False)
    """
    if isinstance(function, _OfOutput):
        return ("output", identity(function.loss))
    if isinstance(function, partial):
        keywords = tuple((name, _value(value)) for name, value in sorted(function.keywords.items()))
        return ("partial", identity(function.func), tuple(map(_value, function.args)), keywords)
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return (code, tuple(map(_value, cells)), tuple(map(_value, defaults)))


def _value(value: Any) -> Any:
    if isinstance(value, (int, float, str, bool, type(None))):
        return (type(value), value)
    return identity(value) if callable(value) and hasattr(value, "__code__") else id(value)
