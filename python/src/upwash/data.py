"""Data sets from arrays and from PyTorch."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _upwash
from .errors import DataError

__all__ = ["Dataset"]


class Dataset:
    """Labeled examples in memory, for `upwash.train(..., data=...)`.

    >>> rng = np.random.default_rng(0)
    >>> def stripes(count):
    ...     labels = rng.integers(0, 4, count)
    ...     columns = np.arange(12) // (labels[:, None, None] + 1) % 2
    ...     return 120 * np.broadcast_to(columns, (count, 12, 12)) + rng.integers(0, 128, (count, 12, 12)), labels
    >>> data = upwash.Dataset(stripes(800), stripes(200), name="stripes")
    >>> data
    <upwash.Dataset stripes: 800 and 200 examples of shape 1x12x12, 4 classes>
    >>> upwash.train({"model": "mlp:16", "training.epochs": 2}, data=data, progress=False).summary.workers
    8

    Args:
        train: examples and labels for training. Examples are an array of images (N, H, W) or (N, C, H, W), or of features
            (N, F); labels are integers from 0.
        test: the same for testing.
        name: the name of the data set in reports.
        classes: the number of classes; by default the largest label plus one.
        augment: crop and flip training images at random.

    Upwash keeps a value in one byte. Integers from 0 to 255 are kept as they are; so are numbers from 0 to 1 that are
    multiples of 1/255, as torchvision makes them. Others are rounded to 256 levels between the smallest and the largest
    of their channel or feature in the training set, which a `UserWarning` says with the largest error. Training scales
    every channel or feature to mean 0 and deviation 1 in any case.
    """

    def __init__(
        self,
        train: tuple[Any, Any],
        test: tuple[Any, Any],
        *,
        name: str = "arrays",
        classes: int | None = None,
        augment: bool = False,
    ) -> None:
        if classes is not None and not 1 <= classes <= 256:
            raise DataError(
                f"data set `{name}`: classes = {classes}: must be from 1 to 256, because a label is one byte"
            )
        parts = [_examples(part, split) for part, split in ((train, "train"), (test, "test"))]
        (train_values, train_labels), (test_values, test_labels) = parts
        if train_values.shape[1:] != test_values.shape[1:]:
            raise DataError(
                f"data set `{name}`: training examples have the shape {train_values.shape[1:]}, but test examples "
                f"{test_values.shape[1:]}"
            )
        train_bytes, test_bytes = _bytes(train_values, test_values, name)
        self._parts = (
            name,
            train_values.shape[1:],
            (train_bytes.reshape(len(train_bytes), -1), train_labels),
            (test_bytes.reshape(len(test_bytes), -1), test_labels),
            classes,
            augment,
        )
        self._native = self._for(_upwash)

    @classmethod
    def of(cls, train: Any, test: Any, *, name: str = "torch", **options: Any) -> "Dataset":
        """A data set from two data sets of PyTorch: a `TensorDataset`, or any whose items are (example, label).

        >>> pairs = [(np.full((2, 2), i % 2), i % 2) for i in range(16)]
        >>> upwash.Dataset.of(pairs, pairs)
        <upwash.Dataset torch: 16 and 16 examples of shape 1x2x2, 2 classes>
        """
        return cls(_pairs(train), _pairs(test), name=name, **options)

    def _for(self, module: Any) -> _upwash.NativeDataset:
        """The data set for a native module: each has types of its own."""
        native: _upwash.NativeDataset = module.NativeDataset(*self._parts)
        return native

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self._native.name

    def __repr__(self) -> str:
        native = self._native
        shape = "x".join(map(str, native.shape))
        examples = f"{native.train_examples} and {native.test_examples} examples of shape {shape}"
        return f"<upwash.Dataset {native.name}: {examples}, {native.classes} classes>"


def dataset_of(data: Any) -> Dataset:
    """A data set, from what `upwash.train` takes as `data`."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        is_arrays = all(isinstance(part, (tuple, list)) and len(part) == 2 for part in data)
        return Dataset(*data) if is_arrays else Dataset.of(*data)
    raise TypeError(
        "data: expected an upwash.Dataset, or a pair (train, test) of data sets of PyTorch or of (examples, labels), "
        f"not {type(data).__name__}"
    )


def _pairs(dataset: Any) -> tuple[Any, Any]:
    """Examples and labels of a data set of PyTorch."""
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, Sequence) and len(tensors) == 2:  # a TensorDataset
        return tensors[0], tensors[1]
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"data: {type(dataset).__name__} has no length and items; give a map-style data set")
    items = [dataset[index] for index in range(len(dataset))]
    if not items:
        raise DataError("data: the data set is empty")
    if any(not isinstance(item, (tuple, list)) or len(item) != 2 for item in items):
        raise DataError("data: every item of the data set must be a pair (example, label)")
    try:
        examples, labels = [_array(example) for example, _ in items], [int(label) for _, label in items]
    except ValueError as error:
        raise DataError(f"data: an item of the data set is no array of numbers with a label: {error}") from error
    for index, example in enumerate(examples):
        if example.shape != examples[0].shape:
            raise DataError(
                f"data: example {index} has the shape {example.shape}, but the first one {examples[0].shape}: bring all to "
                "the same shape"
            )
    return np.stack(examples), np.array(labels)


def _array(values: Any) -> np.ndarray:
    """An array from numpy, PyTorch or lists."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _examples(part: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Examples of shape (N, C, H, W), and their labels."""
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise TypeError(f"data, {split}: expected a pair of arrays, the examples and their labels")
    try:
        values, labels = _array(part[0]), _array(part[1])
    except ValueError as error:
        raise DataError(f"data, {split}: {error}") from error
    if values.dtype.kind not in "biuf" or labels.dtype.kind not in "biuf":
        raise DataError(f"data, {split}: expected numbers, not {values.dtype} and labels {labels.dtype}")
    if labels.ndim != 1 or len(labels) != len(values):
        raise DataError(
            f"data, {split}: {len(values)} examples need as many labels, not an array of shape {labels.shape}"
        )
    shapes = {2: (-1, 1, 1), 3: (1, *values.shape[1:]), 4: values.shape[1:]}
    if values.ndim not in shapes or values.size == 0:
        raise DataError(
            f"data, {split}: examples of shape {values.shape}; expected (N, F), (N, H, W) or (N, C, H, W), none of them 0"
        )
    if not np.isfinite(values).all():
        raise DataError(f"data, {split}: a value is not finite")
    if (labels != np.floor(labels)).any() or labels.min() < 0 or labels.max() > 255:
        raise DataError(f"data, {split}: labels must be integers from 0 to 255")
    return values.reshape(len(values), *shapes[values.ndim]), np.ascontiguousarray(labels, dtype=np.uint8)


def _bytes(train: np.ndarray, test: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values as bytes."""
    both = (train, test)
    if all(_are_bytes(values) for values in both):
        return train.astype(np.uint8), test.astype(np.uint8)
    if all(_are_bytes(values.astype(np.float64) * 255, 1e-4) for values in both):
        scaled = [np.rint(values.astype(np.float64) * 255).astype(np.uint8) for values in both]
        return scaled[0], scaled[1]
    axes = (0, 2, 3)
    low = train.min(axis=axes, keepdims=True).astype(np.float64)
    high = train.max(axis=axes, keepdims=True).astype(np.float64)
    step = np.maximum(high - low, np.finfo(np.float64).tiny) / 255
    rounded = [np.rint((np.clip(values, low, high) - low) / step).astype(np.uint8) for values in both]
    outside = int(((test < low) | (test > high)).sum())
    warnings.warn(
        f"data set `{name}`: values are kept in one byte each, in 256 levels between the smallest and the largest of "
        f"their channel in the training set: the largest error is {float(step.max()) / 2:.3g}"
        + (f", and {outside} test values outside of the range are clipped" if outside else ""),
        UserWarning,
        stacklevel=3,
    )
    return rounded[0], rounded[1]


def _are_bytes(values: np.ndarray, tolerance: float = 0.0) -> bool:
    """Whether all values are integers from 0 to 255."""
    in_range = values.min() >= -tolerance and values.max() <= 255 + tolerance
    return bool(in_range and (np.abs(values - np.rint(values)) <= tolerance).all())
