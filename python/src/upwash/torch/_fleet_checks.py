"""What a fleet takes, and what it refuses."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError


def compiled(models: Sequence[nn.Module], options: bool | Mapping[str, Any]) -> Sequence[Any]:
    """The replicas as they are called."""
    if options is False:
        return models
    # A compiler that makes code for every replica must not stop after eight.
    limits = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit"):
        if hasattr(limits, name):
            setattr(limits, name, max(getattr(limits, name), 4 * len(models)))
    return [torch.compile(model, **({} if options is True else options)) for model in models]


def default_graph(workers: int | None) -> str | None:
    """The graph of the paper is for eight workers."""
    return None if workers in (None, 8) else f"ring:{workers}"


def check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"{name} = {count!r}: must be a whole number of at least 1")


def check_one_device(models: Sequence[nn.Module]) -> None:
    devices = {parameter.device for model in models for parameter in model.parameters()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ConfigError(f"make_model: parameters are on several devices ({names}): pass device= to put them on one")


def checked_optimizer(optimizer: Any, trained: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: returned a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [parameter for parameter in trained if id(parameter) not in own]
    if missing:
        raise ConfigError(
            f"optimizer: {len(missing)} of {len(trained)} parameters are missing: pass it all parameters that it is "
            "given, or freeze those that are not to be trained (requires_grad_(False)) in make_model"
        )
    if len(own) != len(trained):
        raise ConfigError("optimizer: it has parameters that are not of this fleet: pass it those that it is given")
    return optimizer
