"""Decentralized training of your own PyTorch modules.

`Decentralized` wraps the optimizer of an existing loop, so that each of several processes trains one worker. `Fleet` trains
several replicas of a module on one device.
"""

from ..errors import MissingPackageError

_OLDEST = (2, 4)

try:
    import torch as _torch
except ImportError as error:
    raise MissingPackageError(f"upwash.torch needs PyTorch ({error}): pip install torch") from error

if tuple(int(part) for part in _torch.__version__.split(".")[:2]) < _OLDEST:
    raise MissingPackageError(
        f"upwash.torch needs PyTorch {_OLDEST[0]}.{_OLDEST[1]} or newer, and this is {_torch.__version__}: "
        "pip install --upgrade torch"
    )

from ._decentralized import Decentralized, RunEnded  # noqa: E402
from ._fleet import Fleet  # noqa: E402

__all__ = ["Decentralized", "Fleet", "RunEnded"]
