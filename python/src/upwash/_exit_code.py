"""The code with which the program ends: `atexit` does not pass it on."""

import _sitebuiltins
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

_code: Any = None


def watch() -> None:
    """Keeps the argument of `sys.exit`, `exit` and `quit` from now on. `raise SystemExit` calls none of them."""
    # A method has its object as the first argument.
    for owner, name, skipped in ((sys, "exit", 0), (_sitebuiltins.Quitter, "__call__", 1)):
        function = getattr(owner, name)
        if not hasattr(function, "_is_watched"):
            setattr(owner, name, _watched(function, skipped))


def _watched(function: Callable[..., Any], skipped: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def leave(*arguments: Any, **options: Any) -> Any:
        # On another thread it ends only that.
        if threading.current_thread() is threading.main_thread():
            global _code
            _code = [*arguments[skipped:], *options.values(), None][0]
        return function(*arguments, **options)

    leave._is_watched = True  # type: ignore[attr-defined]
    return leave


def is_failure(code: Any) -> bool:
    """Whether this argument of `sys.exit` says that the program has failed."""
    return code is not None and code != 0


def has_failed() -> bool:
    """Whether the program is ending with an error."""
    return is_failure(_code)


def go_on() -> None:
    """Forgets a call of `sys.exit` whose exception was caught."""
    global _code
    _code = None
