"""How long a plan takes in Python, beside the same in Rust: microseconds a worker and round.

    python benchmarks/plans.py

D-PSGD's plans in both languages, and those of the example of README.md, on graphs of different degrees. The fastest of ten
short passes counts, because other processes can only add to the time.
"""

import argparse

import upwash
from upwash import _upwash


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
    rounds = parser.parse_args().rounds
    print("plans alone, us a worker and round\n\n  graph         degree     Rust   Python: D-PSGD  FollowTheBest")
    for spec in ("ring:8", "paper:L1", "complete:8", "exponential:64"):
        graph = upwash.Graph(spec)
        times = [1e6 * _upwash.time_plans(graph, algorithm, rounds) for algorithm in (None, Dpsgd(), FollowTheBest())]
        print(f"  {spec:<14}{graph.degrees.mean():>6.1f}{times[0]:>9.2f}{times[1]:>17.2f}{times[2]:>15.2f}")


if __name__ == "__main__":
    main()
