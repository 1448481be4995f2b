"""Decentralized training of your own PyTorch modules.

`Decentralized` wraps the optimizer of an existing loop, so that each of several processes trains one worker. `Fleet` trains
several replicas of a module on one device.
"""

import warnings as _warnings

from ..errors import MissingPackageError

_OLDEST = (2, 4)
_NEWEST = (2, 11)  # the newest that the tests have run with: that of scripts/install-torch.sh

try:
    import torch as _torch
except ImportError as error:
    raise MissingPackageError(f"upwash.torch needs PyTorch ({error}): pip install torch, or upwash[torch]") from error


def _check_version(version: str) -> None:
    """Refuses a version that is too old, and warns about one that is newer than all tested ones."""
    number = tuple(int(part) for part in version.split(".")[:2])
    oldest, newest = (".".join(map(str, known)) for known in (_OLDEST, _NEWEST))
    if number < _OLDEST:
        raise MissingPackageError(
            f"upwash.torch needs PyTorch {oldest} or newer, and this is {version}: pip install --upgrade torch"
        )
    if number > _NEWEST:
        _warnings.warn(
            f"upwash.torch is tested with PyTorch up to {newest}, and this is {version}: if something fails, "
            f"pip install 'torch=={newest}.*'",
            UserWarning,
            stacklevel=3,
        )


_check_version(_torch.__version__)

from ._decentralized import Decentralized, RunEnded  # noqa: E402
from ._fleet import Fleet  # noqa: E402

__all__ = ["Decentralized", "Fleet", "RunEnded"]
