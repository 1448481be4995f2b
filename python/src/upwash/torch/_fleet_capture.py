"""CUDA graphs: capture, and what is left in order when a capture fails."""

import gc
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

WARM_UP = 3
"""How often something runs before it is captured. These are rounds like any other."""


class CaptureError(Exception):
    """Something cannot be captured. The text says why."""


class Recorder:
    """Captures graphs on one stream, with one pool of memory.

    The graphs may share memory because each leaves its results in tensors outside of the pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)

    def streams(self, count: int) -> list[Any]:
        """Streams beside that of captures."""
        return [torch.cuda.Stream(self._device) for _ in range(count)]

    def current(self) -> Any:
        """The stream in use."""
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Uses a stream."""
        return torch.cuda.stream(stream)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in memory of the host to which the device copies by itself."""
        return tensor.pin_memory()

    def mark(self) -> Any:
        """An event: `query` tells whether the device has done everything so far."""
        event = torch.cuda.Event()
        event.record(self.current())
        return event

    def warm_up(self, body: Callable[[], Any]) -> None:
        """Runs on the stream of captures, so that libraries are ready for it."""
        current = self.current()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            body()
        current.wait_stream(self.stream)

    def capture(self, body: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Captures a body, which does not run. After a failure, the device can be used as before."""
        random_state = torch.cuda.get_rng_state(self._device)
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        graph, failure = torch.cuda.CUDAGraph(), None
        collects = gc.isenabled()
        # A collection during a capture could free memory of the device, which is not allowed.
        gc.disable()
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    body()
                except Exception as error:
                    failure = error
                try:
                    graph.capture_end()
                except Exception as error:
                    failure = failure or error
        except Exception as error:
            failure = failure or error
        finally:
            if collects:
                gc.enable()
        if failure is None:
            return graph
        del graph
        self._recover(random_state)
        text = str(failure).strip().splitlines()
        raise CaptureError(f"{type(failure).__name__}: {text[0] if text else 'no reason given'}") from failure

    def _recover(self, random_state: torch.Tensor) -> None:
        """After a failed capture, the random generator believes that the capture goes on: it gets a new state."""
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:
            # The error of the capture is reported once more.
            torch.cuda.synchronize(self._device)
        self._pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(self._device)
        index = self._device.index if self._device.index is not None else torch.cuda.current_device()
        fresh = torch.Generator(device=self._device)
        fresh.set_state(random_state)
        torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state())


def warn_eager(what: str, why: object) -> None:
    """Says that something runs eagerly."""
    warnings.warn(f"{what} runs eagerly, not as a CUDA graph: {why}", UserWarning, stacklevel=4)
