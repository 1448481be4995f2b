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

    def capture(self, body: Callable[[], Any]) -> Any:
        """Captures a body, which does not run. After a failure, the device can be used as before."""
        collects = gc.isenabled()
        try:
            random_state = torch.cuda.get_rng_state(self._device)
            torch.cuda.synchronize(self._device)
            gc.collect()
            torch.cuda.empty_cache()
        except RuntimeError as error:
            raise CaptureError(_first_line(error)) from error
        # A collection during a capture could free memory of the device, which is not allowed.
        gc.disable()
        try:
            graph, failure = self._record(body)
        finally:
            if collects:
                gc.enable()
        if failure is None:
            return graph
        del graph
        self._recover(random_state)
        raise CaptureError(_first_line(failure)) from failure

    def _record(self, body: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """The graph of a body, and the first error."""
        graph, failure = torch.cuda.CUDAGraph(), None
        with torch.cuda.stream(self.stream):
            try:
                # Other threads, such as those that pin batches, may use the device meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            except RuntimeError as error:
                return graph, error
            try:
                body()
            except Exception as error:
                failure = error
            try:
                graph.capture_end()
            except RuntimeError as error:
                failure = failure or error
        return graph, failure

    def _recover(self, random_state: torch.Tensor) -> None:
        """Ends for the allocator and for the random generator what an invalid capture has begun."""
        index = self._device.index if self._device.index is not None else torch.cuda.current_device()
        fresh = torch.Generator(device=self._device)
        fresh.set_state(random_state)
        for attempt in (
            # The error of the capture may be reported once more.
            lambda: torch.cuda.synchronize(self._device),
            lambda: torch._C._cuda_endAllocateToPool(index, self._pool),
            lambda: torch.cuda.default_generators[index].graphsafe_set_state(fresh.graphsafe_get_state()),
        ):
            try:
                attempt()
            except RuntimeError:
                continue
        self._pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(self._device)
        torch.cuda.synchronize(self._device)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def warn_eager(what: str, why: object) -> None:
    """Says that something runs eagerly."""
    warnings.warn(f"{what} runs eagerly, not as a CUDA graph: {why}", UserWarning, stacklevel=4)
