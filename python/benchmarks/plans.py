"""How long a plan takes in Python, beside the same in Rust: microseconds a worker and round.

    python benchmarks/plans.py [--check]

D-PSGD's plans in both languages, and those of the example of README.md, on graphs of different degrees. The fastest of ten
short passes counts, because other processes can only add to the time.
"""

import argparse
import sys

import upwash
from upwash import _upwash

LIMIT = 100.0
"""Microseconds a worker and round. The promise is 20 in a release build; a busy machine may take several times as long."""


class Dpsgd(upwash.Algorithm):
    """D-PSGD: the round's row of the mixing matrix."""

    def plan(self, view):
        return view.weights()


class FollowTheBest(upwash.Algorithm):
    """Every worker averages its model with that of the neighbor with the lowest loss."""

    def plan(self, view):
        best = min(view.received, key=lambda message: message.loss, default=view)
        return [(view.worker, 0.5), (best.worker, 0.5)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=30, help="rounds of a pass; the fastest of ten short passes counts"
    )
    text = f"fail if a plan in Python takes {LIMIT} us more than in Rust, five times what is promised: never on a busy machine"
    parser.add_argument("--check", action="store_true", help=text)
    arguments = parser.parse_args()
    rounds, is_slow = arguments.rounds, False
    print("plans alone, us a worker and round\n\n  graph         degree     Rust   Python: D-PSGD  FollowTheBest")
    for spec in ("ring:8", "paper:L1", "complete:8", "exponential:64"):
        graph = upwash.Graph(spec)
        times = [1e6 * _upwash.time_plans(graph, algorithm, rounds) for algorithm in (None, Dpsgd(), FollowTheBest())]
        print(f"  {spec:<14}{graph.degrees.mean():>6.1f}{times[0]:>9.2f}{times[1]:>17.2f}{times[2]:>15.2f}")
        is_slow |= max(times[1:]) - times[0] > LIMIT
    return 1 if arguments.check and is_slow else 0


if __name__ == "__main__":
    sys.exit(main())
