"""Models of PyTorch as flat vectors."""

from collections.abc import Callable, Iterable

import torch
from torch.nn.modules.batchnorm import _NormBase

from ..errors import ConfigError

__all__ = ["Flat", "check_trained", "statistics_of", "trainable"]


class Flat:
    """Tensors of a model as views into one vector.

    A tensor keeps its shape and its order of dimensions in memory; what it was a view of is copied.
    """

    def __init__(self, slots: list["Slot"], device: torch.device) -> None:
        self.slots = slots
        self.vector = torch.empty(sum(slot.size for slot in slots), dtype=torch.float32, device=device)
        offset = 0
        with torch.no_grad():
            for slot in slots:
                tensor = slot.get()
                strides = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
                view = self.vector.as_strided(tensor.shape, strides, offset)
                view.copy_(tensor)
                slot.put(view)
                slot.address = view.data_ptr()
                offset += slot.size
        # What crosses to the other workers: the vector itself, or a copy of it in memory of the host.
        on_host = device.type == "cpu"
        self.host = self.vector if on_host else torch.empty_like(self.vector, device="cpu", pin_memory=True)

    def check(self) -> None:
        """Refuses to go on with a model whose tensors have left the vector."""
        for slot in self.slots:
            if not slot.is_in_place():
                raise ConfigError(
                    f"the tensor `{slot.name}` was replaced after the model had been given to Decentralized: load "
                    "weights with load_state_dict(..., assign=False), and call .to(), .half() and the like before"
                )

    def to_host(self) -> None:
        """Copies the vector to the host, and waits for it."""
        if self.host is not self.vector:
            self.host.copy_(self.vector)

    def from_host(self) -> None:
        """Copies the vector back. Work that the device is given later sees it."""
        if self.host is not self.vector:
            self.vector.copy_(self.host, non_blocking=True)


class Slot:
    """A tensor of a model, and how to replace its memory."""

    def __init__(
        self,
        name: str,
        get: Callable[[], torch.Tensor],
        put: Callable[[torch.Tensor], None],
        is_same: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.get = get
        self.put = put
        self.is_same = is_same
        self.size = get().numel()
        self.address = 0

    def is_in_place(self) -> bool:
        return self.is_same() and self.get().data_ptr() == self.address

    @property
    def shape(self) -> list[int]:
        return list(self.get().shape)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gaps and overlaps, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def trainable(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Slot]:
    """The parameters that the optimizer trains, in the order of the model."""
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    slots = []
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter in trained and parameter.requires_grad:
                trained.discard(parameter)
                slots.append(_parameter(f"{prefix}.{name}" if prefix else name, module, name, parameter))
    if foreign := [parameter for parameter in trained if parameter.requires_grad]:
        shape = tuple(foreign[0].shape)
        raise ConfigError(
            f"the optimizer has {len(foreign)} parameters that are not the model's, one of shape {shape}: "
            "create it from model.parameters()"
        )
    if not slots:
        raise ConfigError("the optimizer trains no parameter of the model: each has requires_grad=False, or is missing")
    kinds = {(slot.get().device, slot.get().dtype) for slot in slots}
    if len(kinds) > 1 or next(iter(kinds))[1] != torch.float32:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds))
        raise ConfigError(
            f"the parameters are {found}; they must be float32 and on one device: move the model with .to(device) or "
            ".float(), and compute in lower precision with torch.autocast"
        )
    return slots


def check_trained(slots: list[Slot], optimizer: torch.optim.Optimizer) -> None:
    """Refuses parameters that were frozen, or are trained, since the run began: the other workers expect the same ones."""
    trained = {p.data_ptr() for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if trained != {slot.address for slot in slots}:
        raise ConfigError(
            "the parameters that are trained have changed since Decentralized was created (requires_grad): decide which "
            "ones are trained before"
        )


def _parameter(name: str, module: torch.nn.Module, key: str, parameter: torch.nn.Parameter) -> Slot:
    def put(view: torch.Tensor) -> None:
        parameter.data = view

    return Slot(name, lambda: parameter, put, lambda: module._parameters.get(key) is parameter)


def statistics_of(model: torch.nn.Module, device: torch.device) -> list[Slot]:
    """The running statistics of batch normalization."""
    return list(_statistics(model.named_modules(), device))


def _statistics(modules: Iterable[tuple[str, torch.nn.Module]], device: torch.device) -> Iterable[Slot]:
    for prefix, module in modules:
        if not isinstance(module, _NormBase):
            continue
        for key in ("running_mean", "running_var"):
            buffer = module._buffers.get(key)
            if buffer is None:
                continue
            if buffer.dtype != torch.float32 or buffer.device != device:
                raise ConfigError(
                    f"the buffer `{prefix}.{key}` is {buffer.dtype} on {buffer.device}; it must be float32 on {device}, "
                    "like the parameters"
                )
            yield _buffer(f"{prefix}.{key}", module, key)


def _buffer(name: str, module: torch.nn.Module, key: str) -> Slot:
    def get() -> torch.Tensor:
        buffer = module._buffers[key]
        assert buffer is not None
        return buffer

    def put(view: torch.Tensor) -> None:
        module._buffers[key] = view

    return Slot(name, get, put)
