"""The exchanges of a round as tensor operations over the rows of a fleet.

The planner describes an exchange by dense coefficients. `Program` splits them into a structure, which is the same in
most rounds, and numbers. So a CUDA graph of the structure can be replayed with other numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ._fleet_vectors import Rows

MODEL, STEP = 0, 1
"""The columns of the model and of the step in a combination. State vectors follow."""


class Store:
    """All vectors that exchanges read and write."""

    def __init__(self, models: Rows, statistics: Rows, states: Sequence[torch.Tensor]) -> None:
        self.models, self.statistics = models, statistics
        self.states = list(states)
        self._steps: torch.Tensor | None = None
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}
        self._positions: torch.Tensor | None = None

    @property
    def model(self) -> torch.Tensor:
        return self.models.matrix

    @property
    def steps(self) -> torch.Tensor:
        """The models before their steps, then the steps."""
        if self._steps is None:
            self._steps = torch.zeros_like(self.model)
        return self._steps

    def vector(self, column: int) -> torch.Tensor:
        """The rows of a vector."""
        if column == MODEL:
            return self.model
        return self.steps if column == STEP else self.states[column - 2]

    def differences(self, like: torch.Tensor) -> torch.Tensor:
        """Room for differences of messages, and a last row of ones."""
        rows, width = like.shape
        if (rows, width) not in self._scratch:
            self._scratch[rows, width] = torch.ones(rows + 1, width, device=like.device)
        return self._scratch[rows, width]

    @property
    def positions(self) -> torch.Tensor:
        if self._positions is None:
            self._positions = self.models.positions()
        return self._positions

    @torch.no_grad()
    def separate_steps(self) -> None:
        """Puts the models back before their steps, and keeps the steps: models before minus models after."""
        steps = self.steps - self.model
        self.model.copy_(self.steps)
        self.steps.copy_(steps)


@dataclass(frozen=True)
class Operation:
    """One operation: what it is, and where its numbers are."""

    kind: str
    details: tuple[Any, ...]


class Program:
    """The operations of some exchanges."""

    def __init__(self, exchanges: Sequence[Mapping[str, Any]]) -> None:
        self._numbers: list[np.ndarray] = []
        self._integers: list[np.ndarray] = []
        operations: list[Operation] = []
        for exchange in exchanges:
            operations += self._exchange(exchange)
        self.operations = tuple(operations)
        self.numbers = _joined(self._numbers, np.float32)
        self.integers = _joined(self._integers, np.int64)

    @property
    def is_empty(self) -> bool:
        """Whether no vector changes. PyTorch warns about graphs of such programs."""
        return all(operation.kind == "alias" for operation in self.operations)

    @property
    def structure(self) -> tuple[Any, ...]:
        """What a captured program depends on, apart from its numbers."""
        return (self.operations, len(self.numbers), len(self.integers))

    def _exchange(self, exchange: Mapping[str, Any]) -> Iterator[Operation]:
        for entry in exchange["compressions"]:
            columns = self._columns(entry["contents"])
            self._integers.append(np.array(entry["rows"]))
            if entry["kind"] == "random-k":
                self._integers.append(entry["draws"][entry["rows"]])
            yield Operation("compress", (entry["copy"], entry["kind"], entry["kept"], len(entry["rows"]), columns))
        steps = _changing(exchange["steps"], exchange["messages"])
        for index, content in enumerate(exchange["messages"]):
            uses = [number for number, step in enumerate(steps) if step["message"] == index and _reads_messages(step)]
            if uses:
                column = _only_column(content)
                changed = any(step["target"] == column for step in steps[: uses[-1]])
                if column is not None and not changed:
                    yield Operation("alias", (index, column))
                else:
                    yield Operation("form", (index, self._columns(content)))
        for step in steps:
            yield self._step(step, exchange["counted"])
        if exchange["statistics"] is not None:
            weights = exchange["statistics"]
            self._numbers.append(weights - np.diag(weights.sum(1)))
            yield Operation("statistics", ())

    def _columns(self, content: np.ndarray) -> tuple[tuple[int, str], ...]:
        """The vectors of a combination, each with `one` if every row has the weight 1, else `some`."""
        found = []
        for column in np.flatnonzero(content.any(0)):
            weights = content[:, column]
            if (weights == 1).all():
                found.append((int(column), "one"))
            else:
                self._numbers.append(weights)
                found.append((int(column), "some" if weights.all() else "partial"))
        return tuple(found)

    def _step(self, step: Mapping[str, Any], counted: np.ndarray) -> Operation:
        rows, target = step["rows"], step["target"]
        own = step["own"].copy()
        # Other rows keep the vector.
        own[~rows] = 0
        own[~rows, target] = 1
        workers = len(rows)
        itself = np.arange(workers)
        matrix = step["others"].copy()
        matrix[itself, step["reference"]] -= step["others"].sum(1)
        if step["mean"].any():
            matrix += step["mean"][:, None] * counted[None] / counted.sum()
        reference = "none"
        if step["weight"].any():
            gathered = (step["reference"] != itself)[step["weight"] != 0].any()
            reference = "gathered" if gathered else "own"
        columns = self._columns(own)
        weight: tuple[tuple[int, str], ...] = ()
        if reference != "none":
            weight = self._columns(step["weight"][:, None])
        if reference == "gathered":
            self._integers.append(step["reference"])
        mixes, averages = bool(matrix.any()), bool(step["mean"].any())
        if mixes:
            self._numbers.append(matrix)
        if averages:
            self._numbers.append(step["mean"])
        first = int(np.flatnonzero(counted)[0])
        return Operation("step", (target, step["message"], columns, reference, weight, mixes, averages, first))


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts]).astype(kind) if parts else np.zeros(0, kind)


def _reads_messages(step: Mapping[str, Any]) -> bool:
    return bool(step["weight"].any() or step["others"].any() or step["mean"].any())


def _changing(steps: Sequence[Mapping[str, Any]], messages: Sequence[np.ndarray]) -> list[Mapping[str, Any]]:
    """The steps, without those after which their vector is what it was."""
    changing: list[Mapping[str, Any]] = []
    for step in steps:
        is_first = all(earlier["target"] != step["target"] for earlier in changing)
        if not (is_first and _keeps_its_vector(step, messages)):
            changing.append(step)
    return changing


def _keeps_its_vector(step: Mapping[str, Any], messages: Sequence[np.ndarray]) -> bool:
    """Whether every row of a vector becomes what it is, or what it sends of itself."""
    rows, target = step["rows"], step["target"]
    own, weight = step["own"][rows], step["weight"][rows]
    if step["others"].any() or step["mean"].any() or np.delete(own, target, 1).any():
        return False
    if not weight.any():
        return bool((own[:, target] == 1).all())
    reads_itself = bool((step["reference"] == np.arange(len(rows)))[rows].all() and (weight == 1).all())
    return reads_itself and not own.any() and _only_column(messages[step["message"]]) == target


def _only_column(content: np.ndarray) -> int | None:
    """The vector that all rows send, if it is the only one and unchanged."""
    columns = np.flatnonzero(content.any(0))
    if len(columns) == 1 and (content[:, columns[0]] == 1).all():
        return int(columns[0])
    return None


class Numbers:
    """Reads the numbers of a program in order."""

    def __init__(self, numbers: torch.Tensor, integers: torch.Tensor) -> None:
        self._parts = [numbers, integers]

    def floats(self, *shape: int) -> torch.Tensor:
        return self._take(0, shape)

    def integers(self, *shape: int) -> torch.Tensor:
        return self._take(1, shape)

    def _take(self, part: int, shape: tuple[int, ...]) -> torch.Tensor:
        size = int(np.prod(shape))
        taken, self._parts[part] = self._parts[part][:size], self._parts[part][size:]
        return taken.view(shape)


@torch.no_grad()
def carry_out(operations: Sequence[Operation], store: Store, numbers: Numbers) -> None:
    """Carries out operations with these numbers."""
    messages: dict[int, torch.Tensor] = {}
    with full_precision(store.model.device):
        for operation in operations:
            match operation.kind:
                case "compress":
                    _compress(store, numbers, *operation.details)
                case "alias":
                    index, column = operation.details
                    messages[index] = store.vector(column)
                case "form":
                    index, columns = operation.details
                    messages[index] = _combined(store, columns, numbers)
                case "step":
                    _assign(store, numbers, messages, *operation.details)
                case "statistics":
                    rows = store.statistics.matrix
                    weights = numbers.floats(len(rows), len(rows))
                    if rows.shape[1]:
                        _mix(rows, _differences(store, rows, _finite(rows[0]), weights), weights)


def _scaled(vector: torch.Tensor, weight: torch.Tensor, kind: str) -> torch.Tensor:
    """The rows of a vector, each times its weight. 0 times a number that is not finite is 0."""
    scaled = vector * weight
    return scaled if kind == "some" else torch.where(weight == 0, torch.zeros_like(weight), scaled)


def _combined(store: Store, columns: tuple[tuple[int, str], ...], numbers: Numbers) -> torch.Tensor:
    """A combination of each row's own vectors, as a new matrix."""
    total: torch.Tensor | None = None
    for column, kind in columns:
        vector = store.vector(column)
        if kind == "one":
            total = vector.clone() if total is None else total.add_(vector)
        else:
            part = _scaled(vector, numbers.floats(len(vector), 1), kind)
            total = part if total is None else total.add_(part)
    return torch.zeros_like(store.model) if total is None else total


def _assign(
    store: Store,
    numbers: Numbers,
    messages: Mapping[int, torch.Tensor],
    target: int,
    message: int,
    columns: tuple[tuple[int, str], ...],
    reference: str,
    weight: tuple[tuple[int, str], ...],
    mixes: bool,
    averages: bool,
    first: int,
) -> None:
    """Sets a vector to a sum of own vectors and messages. Everything is read before it changes."""
    vector, sent = store.vector(target), messages.get(message)
    workers = len(vector)
    own = [(column, kind, None if kind == "one" else numbers.floats(workers, 1)) for column, kind in columns]
    taken: torch.Tensor | None = None
    if sent is not None and reference != "none":
        kind = weight[0][1]
        part = None if kind == "one" else numbers.floats(workers, 1)
        taken = sent.index_select(0, numbers.integers(workers)) if reference == "gathered" else sent
        taken = taken if part is None else _scaled(taken, part, kind)
        if taken is vector and any(column == target for column, _, _ in own):
            taken = vector.clone()
    if sent is not None and mixes:
        matrix = numbers.floats(workers, workers)
        share = numbers.floats(workers, 1) if averages else None
        common = _finite(sent[first])
        differences = _differences(store, sent, common, matrix)
    keeps = False
    others = []
    for column, kind, part in own:
        if column == target:
            keeps = True
            if part is not None:
                vector.copy_(_scaled(vector, part, kind))
        else:
            others.append((store.vector(column), part, kind))
    # The vector itself, sent unchanged and counted once, stays in place.
    if taken is not None:
        if not keeps:
            if taken is not vector:
                vector.copy_(taken)
            keeps = True
        else:
            vector.add_(taken)
    for other, part, kind in others:
        value = other if part is None else _scaled(other, part, kind)
        vector.add_(value) if keeps else vector.copy_(value)
        keeps = True
    if not keeps:
        vector.zero_()
    if sent is not None and mixes:
        if share is not None:
            vector.addcmul_(share, common[None])
        _mix(vector, differences, matrix)


def _finite(row: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(row, nan=0.0, posinf=0.0, neginf=0.0)


def _differences(
    store: Store, sent: torch.Tensor, common: torch.Tensor, matrix: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Messages minus a common row, and for every row what spoils it: NaN if a message with a weight is not finite.

    Sums of differences keep the mean of all models, because rounding a weight changes only what is small.
    """
    room = store.differences(sent)
    rows = room[:-1]
    torch.sub(sent, common, out=rows)
    bad = ~torch.isfinite(rows.sum(1))
    # In a matrix product, 0 times NaN is NaN: only rows with a weight may get it.
    rows.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    spoiled = ((matrix != 0) & bad[None]).any(1)
    return room, torch.where(spoiled, torch.nan, 0.0).to(matrix.dtype)


def _mix(vector: torch.Tensor, differences: tuple[torch.Tensor, torch.Tensor], matrix: torch.Tensor) -> None:
    room, spoil = differences
    vector.addmm_(torch.cat([matrix, spoil[:, None]], 1), room)


def _compress(
    store: Store,
    numbers: Numbers,
    copy: int,
    kind: str,
    kept: int,
    count: int,
    columns: tuple[tuple[int, str], ...],
) -> None:
    """Adds the compressed differences between messages and public copies to the copies."""
    rows = numbers.integers(count)
    draws = numbers.integers(count, 3) if kind == "random-k" else None
    copies = store.vector(copy)
    difference = (_combined(store, columns, numbers) - copies).index_select(0, rows)
    copies.index_add_(0, rows, compressed(difference, kind, kept, store.positions, store.models.count, draws))


def compressed(
    vectors: torch.Tensor, kind: str, kept: int, positions: torch.Tensor, count: int, draws: torch.Tensor | None
) -> torch.Tensor:
    """What receivers get of each row: the same numbers as `upwash::compress::Compression` gives, without padding."""
    real = positions >= 0
    match kind:
        case "top-k" if kept < count:
            sizes = torch.where(real, vectors.abs(), -1.0)
            chosen = sizes.topk(kept, dim=1, sorted=False).indices
            return torch.zeros_like(vectors).scatter_(1, chosen, vectors.gather(1, chosen))
        case "random-k":
            assert draws is not None
            result = torch.zeros_like(vectors)
            for row, draw in enumerate(draws):
                chosen, offset, stride = draw.unbind()
                is_chosen = real & ((offset + positions * stride) % count < chosen)
                result[row] = torch.where(is_chosen, vectors[row], 0.0)
            return result
        case "sign":
            size = (vectors.abs().sum(1, dtype=torch.float64) / count).to(torch.float32)[:, None]
            signed = torch.where(vectors == 0, size, torch.copysign(size, vectors))
            return torch.where(real, signed, 0.0)
        case "eight-bit":
            scale = vectors.abs().amax(1, keepdim=True) / 127.0
            return torch.where(scale == 0, vectors, torch.round(vectors / scale) * scale)
    return vectors


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Exchanges in float32, whatever autocast or TensorFloat-32 the training uses."""
    with torch.autocast(device.type, enabled=False):
        if device.type != "cuda":
            yield
            return
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            # The precision was set with the interface of torch 2.9, which must not be mixed with the former one.
            matmul = torch.backends.cuda.matmul
            fast, matmul.fp32_precision = matmul.fp32_precision, "ieee"
            try:
                yield
            finally:
                matmul.fp32_precision = fast
            return
        if before == "highest":
            yield
            return
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
