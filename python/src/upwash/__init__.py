"""Decentralized training: many workers exchange models with their neighbors in a graph, without a central server.

Graphs and their theory are numpy arrays:

>>> import upwash
>>> graph = upwash.Graph("paper:L1")
>>> graph.degrees
array([3, 5, 2, 4, 1, 2, 3, 4])
>>> round(graph.contraction(), 6)      # D-PSGD: a round multiplies the squared disagreement by at most this
0.653777

Runs are data frames and pictures:

>>> run = upwash.train({"graph": graph, "training.epochs": 2}, progress=False)
>>> run.status
'finished'

`upwash.Algorithm` is the base of algorithms in Python, `upwash.Dataset` takes your data, and `upwash.errors` has the
exceptions.
"""

from . import errors, trackers
from ._display import Svg
from ._partition import Sampler, partition
from ._records import Record
from ._upwash import (
    VERSION as __version__,
)
from ._upwash import (
    Graph,
    Leaders,
    Matcha,
    Received,
    Rotation,
    Round,
    Schedule,
    View,
    graph_kinds,
)
from .algorithm import Algorithm, Assignment, Message, Plan
from .comparison import Comparison, compare, sweep
from .data import Dataset
from .errors import StopTraining, UpwashError
from .experiment import Experiment
from .run import Run, Runs, load
from .training import train

__all__ = [
    "Algorithm",
    "Assignment",
    "Comparison",
    "Dataset",
    "Experiment",
    "Graph",
    "Leaders",
    "Matcha",
    "Message",
    "Plan",
    "Received",
    "Record",
    "Rotation",
    "Round",
    "Run",
    "Runs",
    "Sampler",
    "Schedule",
    "StopTraining",
    "Svg",
    "UpwashError",
    "View",
    "__version__",
    "compare",
    "errors",
    "graph_kinds",
    "load",
    "partition",
    "sweep",
    "trackers",
    "train",
]
