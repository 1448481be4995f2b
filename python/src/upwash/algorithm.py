"""Algorithms in Python. What crosses the border between the languages are a few weights a worker and round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._upwash import View

__all__ = ["Algorithm", "Assignment", "Message", "Plan"]

Weights = Mapping[Any, float] | Sequence[tuple[Any, float]]
"""A weight for each sender or vector, as a dict or as pairs. Weights of the same sender are added."""


@dataclass
class Message:
    """What a worker sends: a combination of its own vectors.

    Vectors are named: `"model"` is x, the model before the step; `"step"` is u, the learning rate times the optimizer's
    direction; state vectors have the names that the algorithm gave them.

    >>> Message({"model": 1, "step": -1})      # the model after the step
    Message(content={'model': 1, 'step': -1}, public_copy=None, compression='none')
    """

    content: Weights
    """The vectors and their weights."""
    public_copy: str | None = None
    """For a compressed message: the state vector that is the copy of the content which all receivers also keep. The
    compressed difference is sent."""
    compression: str = "none"
    """`none`, `sign`, `eight-bit`, `top-k:PART` or `random-k:PART`."""


@dataclass
class Assignment:
    """The new value of one vector: a weighted sum of messages and of the worker's own vectors.

    >>> Assignment("model", messages={0: 0.5, 3: 0.5})       # the mean of the messages of workers 0 and 3
    Assignment(target='model', messages={0: 0.5, 3: 0.5}, own={}, message_index=0, mean=0.0)
    """

    target: str = "model"
    """The vector: `"model"` or a state vector."""
    messages: Weights = field(default_factory=dict)
    """The weight of each sender's message. The worker's own message can be among them."""
    own: Weights = field(default_factory=dict)
    """The weights of the worker's own vectors."""
    message_index: int = 0
    """Which of each sender's messages is used."""
    mean: float = 0.0
    """The weight of the mean of all workers' messages, in an exchange `"mean"`."""


@dataclass
class Plan:
    """What becomes of a worker's vectors in an exchange.

    >>> Plan.alone().assignments[0].own
    {'model': 1.0, 'step': -1.0}
    """

    assignments: Sequence[Assignment] = ()
    """The assignments in order. Each may use the results of earlier ones."""
    scalar: float | None = None
    """The worker's new scalar, if it changes. It travels with the worker's messages and starts at 1."""
    leaders: tuple[int, int] | None = None
    """Two workers to report as the leaders of this one."""

    @classmethod
    def alone(cls) -> "Plan":
        """The worker takes its step alone."""
        return cls([Assignment("model", own={"model": 1.0, "step": -1.0})])


class Algorithm:
    """A synchronous algorithm. A subclass needs one method, `plan`.

    A round works as follows. Every worker computes a gradient and with it a step u. It sends `messages` to its neighbors
    (by default the stepped model x - u). `plan` then says what its model becomes, as weights over the messages that it
    received. It never sees a vector. Such algorithms run on the CPU engine, in one process and over MPI.

    >>> class FollowTheBest(upwash.Algorithm):
    ...     "Every worker averages its model with that of the neighbor with the lowest loss."
    ...     def plan(self, view):
    ...         best = min(view.received, key=lambda message: message.loss, default=view)
    ...         return [(view.worker, 0.5), (best.worker, 0.5)]
    >>> run = upwash.train({"training.epochs": 2}, algorithm=FollowTheBest(), progress=False)
    >>> run.summary.algorithm
    'FollowTheBest'

    An exception in one of the methods ends the run before any model changes. `upwash.train` raises it.

    A run is continued, and `upwash.compare` uses a run that exists, only with the same algorithm: the same code of its
    class and of its bases, the same attributes of the class and the instance (numbers, texts, arrays, and lists and dicts
    of them), and the same global numbers and texts in its methods. Changes in functions, classes and objects that the
    methods use are not noticed: remove the runs, or choose another `out`. What an instance changes in itself is not in a
    checkpoint; keep it in state vectors and scalars.
    """

    state_vectors: Mapping[str, str] = {}
    """Vectors that every worker keeps besides the model, by name; each starts as `"zero"` or as `"model"`."""
    matcha_budget: float | None = None
    """Use matchings of the graph that MATCHA draws; in a round, this part of them is expected to be active (0 to 1)."""
    uses_graph: bool = True
    """Whether messages travel over the links of the graph."""
    has_server: bool = False
    """Whether one worker without data, which is linked with all others, serves them."""
    supports_directed: bool = False
    """Whether links may be directed, so that their weights need not preserve the average."""
    starts_equal: bool = False
    """Whether all workers start from the same model by default."""
    owns_momentum: bool = False
    """Whether the algorithm applies the configured momentum instead of the optimizer."""

    def plan(self, view: View) -> Plan | Weights:
        """What becomes of the vectors of worker `view.worker`: weights over messages for its model, or a `Plan`."""
        raise NotImplementedError(f"{type(self).__name__} has no method plan(view): return weights over messages")

    def messages(self, view: View) -> Sequence[Message | Mapping[str, float]]:
        """What worker `view.worker` sends. Nothing has been received yet.

        It is called once for every view, and once for worker 0 before the run.
        """
        return [{"model": 1.0, "step": -1.0}]

    def exchanges(self, round: int) -> Sequence[str]:
        """The exchanges of a round, in order.

        `neighbors`: along the links; `early`: along the links, before the gradient is known; `mean`: all learn the mean
        of all messages; `chosen`: all learn the losses of all, and only the messages that plans use are sent; `server`,
        `to-server`, `from-server`: with the server; `nothing`: nothing is sent.
        """
        return ["neighbors"]

    def display_name(self) -> str:
        """The name of the algorithm in reports."""
        return type(self).__name__
