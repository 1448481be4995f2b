"""Data for tests."""

import numpy as np


def clouds(count, seed):
    """Four clouds of points in six dimensions, of very different scales."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    centers = np.random.default_rng(7).normal(size=(4, 6)) * 3
    scales = np.array([1, 10, 0.1, 1000, 1, 1])
    return (centers[labels] + rng.normal(size=(count, 6))) * scales, labels
