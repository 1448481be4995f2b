"""The losses and gradients of all replicas: one after the other, or as a CUDA graph with a stream for each."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ._fleet_batches import Batches, Loss, identity
from ._fleet_capture import WARM_UP, CaptureError, Recorder, warn_eager

MAX_GRAPHS = 4
"""The most graphs for batches of different forms, and for different losses."""

Gradient = tuple[nn.Parameter, torch.Tensor]
"""A parameter, and the view in which its gradient is accumulated."""


class Gradients:
    """Computes losses and gradients."""

    def __init__(
        self,
        models: Sequence[Any],
        matrix: torch.Tensor,
        gradients: Sequence[Sequence[Gradient]],
        autocast: torch.dtype | None,
    ) -> None:
        self._models, self._matrix, self._gradients, self._autocast = list(models), matrix, gradients, autocast
        self._graphs: Graphs | None = None

    def use_graphs(self, recorder: Recorder) -> None:
        """Captures what can be captured, from now on."""
        self._graphs = Graphs(self, recorder, len(self._models), self._matrix.device)

    @property
    def is_captured(self) -> bool:
        """Whether graphs are in use for all rounds but the first."""
        return self._graphs is not None and self._graphs.is_in_use and not self._graphs.is_full

    def compute(self, batches: Batches, loss: Loss) -> torch.Tensor:
        """Every replica's loss, on the CPU. Gradients may still be under way on the device."""
        self._restore_views()
        if self._graphs is not None:
            losses = self._graphs.compute(batches, loss)
            if losses is not None:
                return losses
        return self._one_after_the_other(batches, loss)

    def _one_after_the_other(self, batches: Batches, loss: Loss) -> torch.Tensor:
        self._matrix.zero_()
        losses = []
        for replica, batch in enumerate(batches.on(self._matrix.device)):
            value = self.loss(replica, batch, loss)
            value.backward()
            losses.append(value.detach().float())
        return torch.stack(losses).cpu()

    def loss(self, replica: int, batch: Any, loss: Loss) -> torch.Tensor:
        """The loss of a replica."""
        with self._precision():
            value = loss(self._models[replica], batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise TypeError(f"the loss must be a tensor with one number, not {what}: take its mean")
        if not value.requires_grad:
            raise TypeError("the loss does not depend on the parameters: compute it from the module, without no_grad")
        return value.reshape(())

    def _precision(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        # The cache would keep weights that a captured graph must cast anew.
        return torch.autocast(self._matrix.device.type, self._autocast, cache_enabled=False)

    def _restore_views(self) -> None:
        """Gradients are accumulated into views, unless `zero_grad` has removed them."""
        for replica in self._gradients:
            parameter, view = replica[0]
            if parameter.grad is not view:
                for parameter, view in replica:
                    parameter.grad = view

    def mode(self) -> tuple[Any, ...]:
        """What decides how a module computes, besides its code."""
        kind = self._matrix.device.type
        outer = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return (*(model.training for model in self._models), outer)


class _Graph:
    """A graph of one form of batches and one loss, and the memory that it reads."""

    def __init__(self, batches: Batches, loss: Loss, device: torch.device) -> None:
        # The loss is kept, because its identity is that of objects that must live.
        self.room, self.loss = batches.reserve(device), loss
        self.rounds = 0
        self.graph: Any = None


class Graphs:
    """The graphs of losses and gradients.

    A loss is known long before its gradient. So the graph copies losses into memory of the host, followed by a count,
    and the host looks at the count. It makes plans while backward passes still run.
    """

    def __init__(self, gradients: Gradients, recorder: Recorder, replicas: int, device: torch.device) -> None:
        self._gradients, self._recorder, self._device = gradients, recorder, device
        self._streams = recorder.streams(replicas)
        self._graphs: dict[Any, _Graph] = {}
        self._failure: str | None = None
        self.is_full = False
        self._losses = torch.zeros(replicas, device=device)
        self._count = torch.zeros(1, dtype=torch.int64, device=device)
        self._host_losses = recorder.pinned(torch.zeros(replicas))
        self._host_count = recorder.pinned(torch.zeros(1, dtype=torch.int64))
        self._seen = self._host_count.numpy()
        self._expected = 0
        self._reads_early = True
        self._is_checked = False

    @property
    def is_in_use(self) -> bool:
        return self._failure is None and any(graph.graph is not None for graph in self._graphs.values())

    def compute(self, batches: Batches, loss: Loss) -> torch.Tensor | None:
        """Every replica's loss; None if the round must be computed without graphs."""
        if self._failure is not None:
            return None
        key = (batches.key, identity(loss), self._gradients.mode())
        known = self._graphs.get(key)
        if known is None:
            if len(self._graphs) >= MAX_GRAPHS:
                if not self.is_full:
                    self.is_full = True
                    warn_eager(
                        "a step",
                        f"there are graphs for {MAX_GRAPHS} other forms of batches and losses already; pad batches to "
                        "the same shape, and pass the same loss function in every step",
                    )
                return None
            known = self._graphs[key] = _Graph(batches, loss, self._device)
        known.room.load(batches)
        if known.graph is None and known.rounds >= WARM_UP:
            try:
                known.graph = self._recorder.capture(lambda: self._run(known))
            except CaptureError as error:
                self._failure = str(error)
                self._graphs.clear()
                warn_eager("the gradient computation", error)
                return None
        known.rounds += 1
        if known.graph is not None:
            known.graph.replay()
        else:
            try:
                self._recorder.warm_up(lambda: self._run(known))
            except BaseException:
                # It may have counted its losses already.
                self._expected = int(self._count)
                raise
        self._expected += 1
        return self._read()

    def _run(self, graph: _Graph) -> None:
        """Forward and backward passes, each replica on its stream."""
        main = self._recorder.current()
        self._gradients._matrix.zero_()
        values = []
        for replica, (stream, batch) in enumerate(zip(self._streams, graph.room.batches, strict=True)):
            stream.wait_stream(main)
            with self._recorder.on(stream):
                value = self._gradients.loss(replica, batch, graph.loss)
                self._losses[replica].copy_(value.detach())
            values.append(value)
        for stream in self._streams:
            main.wait_stream(stream)
        self._host_losses.copy_(self._losses, non_blocking=True)
        self._count.add_(1)
        self._host_count.copy_(self._count, non_blocking=True)
        # Gradients are accumulated on the stream of the forward pass.
        for stream, value in zip(self._streams, values, strict=True):
            with self._recorder.on(stream):
                value.backward()
        for stream in self._streams:
            main.wait_stream(stream)

    def _read(self) -> torch.Tensor:
        """Waits for the losses, not for the gradients."""
        if self._reads_early:
            self._wait()
            losses = self._host_losses.clone()
            if self._is_checked or not self.is_in_use:
                return losses
            # The first time, make sure that what was read early is what the graph computed.
            self._is_checked = True
            known = self._losses.to("cpu", copy=True)
            self._reads_early = bool(torch.equal(known.nan_to_num(), losses.nan_to_num()))
            return known
        return self._losses.to("cpu", copy=True)

    def _wait(self) -> None:
        finished = self._recorder.mark()
        polls = 0
        while self._seen[0] < self._expected:
            polls += 1
            if polls % 1000 == 0 and finished.query() and self._seen[0] < self._expected:
                self._reads_early = False
                self._host_losses.copy_(self._losses)
                return
