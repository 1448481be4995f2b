"""The end of the interpreter, which threads that call Python must not outlive: it would abort."""

import time
from collections.abc import Callable
from typing import Protocol

INTERRUPT_AFTER = 5.0
"""Seconds that an algorithm in Python gets to return before it is interrupted."""
LIMIT = 60.0
"""Seconds after which the interpreter ends in any case."""
_INTERVAL = 0.02


class Native(Protocol):
    """What calls an algorithm in Python, on a thread of its own."""

    def is_planning(self, *, raises: bool) -> bool: ...


def end(native: Native, leave: Callable[[], bool]) -> None:
    """Ends a run: tries `leave` until it is True. An algorithm that does not return is interrupted meanwhile."""
    start = time.monotonic()
    while (waited := time.monotonic() - start) < LIMIT:
        is_planning = native.is_planning(raises=waited > INTERRUPT_AFTER)
        if not is_planning and leave():
            return
        time.sleep(_INTERVAL)
