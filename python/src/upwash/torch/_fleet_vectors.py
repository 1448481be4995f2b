"""The vectors of a fleet: one row for each replica, in which every tensor of the replica is a view."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import ConfigError

ALIGNMENT = 64
"""Every tensor begins at a multiple of this many numbers."""


@dataclass(frozen=True)
class Slot:
    """A tensor within a row."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return _size(self.shape)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


class Rows:
    """A matrix with a row for each replica, and the places of tensors in a row."""

    def __init__(self, slots: Sequence[Slot], workers: int, device: torch.device) -> None:
        self.slots = tuple(slots)
        last = self.slots[-1] if self.slots else None
        width = 0 if last is None else _padded(last.offset + last.size)
        self.matrix = torch.zeros(workers, width, device=device)

    @classmethod
    def of(cls, tensors: dict[str, torch.Tensor], workers: int, device: torch.device) -> "Rows":
        """Lays out tensors like these, with their memory format."""
        slots, offset = [], 0
        for name, tensor in tensors.items():
            slots.append(Slot(name, tuple(tensor.shape), _dense_stride(tensor), offset))
            offset += _padded(tensor.numel())
        return cls(slots, workers, device)

    @property
    def count(self) -> int:
        """The number of values of a row, without padding."""
        return sum(slot.size for slot in self.slots)

    def like(self) -> "Rows":
        """A matrix of zeros with the same layout."""
        return Rows(self.slots, self.matrix.shape[0], self.matrix.device)

    def view(self, row: int, slot: Slot) -> torch.Tensor:
        """A tensor of a row. It has a storage of its own, so that it is saved alone and is no alias of others."""
        start = 4 * (row * self.matrix.shape[1] + slot.offset)
        try:
            storage = self.matrix.untyped_storage()[start : start + 4 * slot.size]
            return torch.empty(0, device=self.matrix.device).set_(storage, 0, slot.shape, slot.stride)
        except (NotImplementedError, RuntimeError, TypeError):
            # Some devices have no such storages. Everything but saving a single replica works all the same.
            return self.matrix[row][slot.offset :][: slot.size].as_strided(slot.shape, slot.stride)

    def unpadded(self, row: torch.Tensor) -> torch.Tensor:
        """The tensors of a row, one after the other, each in the order of its indices."""
        parts = [row[slot.offset :][: slot.size].as_strided(slot.shape, slot.stride).reshape(-1) for slot in self.slots]
        return torch.cat(parts) if parts else row[:0]

    def positions(self) -> torch.Tensor:
        """For every column, its index without padding; -1 for padding."""
        positions = torch.full((self.matrix.shape[1],), -1, dtype=torch.int64)
        first = 0
        for slot in self.slots:
            values = torch.arange(first, first + slot.size).view(slot.shape)
            positions[slot.offset :][: slot.size].as_strided(slot.shape, slot.stride).copy_(values)
            first += slot.size
        return positions.to(self.matrix.device)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a tensor if it has no gaps, as in the format channels_last; else those of a contiguous one."""
    return tuple(torch.empty_like(tensor, device="meta").stride())


def trained_parameters(model: nn.Module, replica: int) -> dict[str, nn.Parameter]:
    """The parameters that are trained. Frozen ones stay as they are."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            if parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                raise ConfigError(
                    f"make_model: {name} of replica {replica} is {kind}: a fleet trains float32 parameters; pass "
                    "autocast=torch.bfloat16 for fast arithmetic"
                )
            found[name] = parameter
    if not found:
        raise ConfigError("make_model: the module has no parameters that require a gradient")
    return found


def running_statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    """The running statistics of batch normalization."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            for kind in ("running_mean", "running_var"):
                tensor = getattr(module, kind)
                if tensor is not None and tensor.dtype == torch.float32:
                    found[f"{path}.{kind}" if path else kind] = tensor
    return found


def set_buffer(model: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Replaces a buffer by its path."""
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, tensor)


@dataclass(frozen=True)
class Place:
    """A tensor of a replica, and where the fleet has put it."""

    name: str
    module: nn.Module
    key: str
    tensor: torch.Tensor
    address: int

    @classmethod
    def of(cls, model: nn.Module, name: str) -> "Place":
        """The place of a parameter or buffer, by its path."""
        path, _, key = name.rpartition(".")
        module = model.get_submodule(path)
        tensor = getattr(module, key)
        return cls(name, module, key, tensor, tensor.data_ptr())

    @property
    def is_kept(self) -> bool:
        tensor = getattr(self.module, self.key, None)
        return tensor is self.tensor and tensor.data_ptr() == self.address


def check_places(places: Sequence[Place], replica: int) -> None:
    """Refuses a replica of which a tensor was replaced: the fleet would train and exchange the former one."""
    for place in places:
        if not place.is_kept:
            raise ConfigError(
                f"the tensor {place.name} of replica {replica} is no longer the one that the fleet trains: load weights "
                "with load_state_dict(..., assign=False), call .to(), .half() and the like in make_model, and create "
                "another fleet"
            )


def check_alike(models: Sequence[nn.Module]) -> None:
    """Refuses replicas that share parameters or differ in shapes."""
    owners: dict[int, int] = {}
    first: dict[str, tuple[int, ...]] = {}
    for replica, model in enumerate(models):
        own = {}
        for name, parameter in model.named_parameters():
            if nn.parameter.is_lazy(parameter):
                raise ConfigError(
                    f"make_model: {name} has no shape yet: run a batch through the module before returning it"
                )
            owner = owners.setdefault(id(parameter), replica)
            if owner != replica:
                raise ConfigError(
                    f"make_model: replicas {owner} and {replica} share the parameter {name}: build a new module in "
                    "every call"
                )
            own[name] = tuple(parameter.shape)
        first = first or own
        if own.keys() != first.keys():
            different = ", ".join(sorted(own.keys() ^ first.keys()))
            raise ConfigError(f"make_model: replicas 0 and {replica} have different parameters: {different}")
        for name, shape in own.items():
            if shape != first[name]:
                raise ConfigError(
                    f"make_model: {name} has the shape {shape} in replica {replica}, but {first[name]} in replica 0"
                )
