"""Measures the same as `cargo bench -p upwash-topology`, with the libraries that a Python user would choose.

    python3 -m venv venv && venv/bin/pip install networkx cvxpy numpy
    cargo build --release
    venv/bin/python crates/upwash-topology/benches/peers/peers.py [--upwash target/release/upwash]

The graphs are those of the Rust benchmark, read from `upwash topology optimize --json`. Each row gives the
median of three runs of a greedy edge coloring by networkx (of the line graph; it may need up to twice as many
matchings) and of eigenvalues by numpy, and one run of MATCHA's program, written in cvxpy as its authors do and
solved by Clarabel (and by SCS, cvxpy's first-order solver). A solver is stopped after --limit seconds and is then
not tried at larger sizes.
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import time

import cvxpy
import networkx
import numpy


def timed(function, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def color(graph):
    return networkx.greedy_color(networkx.line_graph(graph), strategy="largest_first")


def laplacian(nodes, links):
    result = numpy.zeros((nodes, nodes))
    for u, v in links:
        result[u, u] += 1
        result[v, v] += 1
        result[u, v] -= 1
        result[v, u] -= 1
    return result


def matcha(nodes, matchings, budget, solver):
    laplacians = [laplacian(nodes, links) for links in matchings]
    p = cvxpy.Variable(len(matchings))
    gamma = cvxpy.Variable()
    mean = sum(p[j] * laplacians[j] for j in range(len(matchings)))
    # Adding the average gives the cone an interior, without which Clarabel fails.
    average = numpy.ones((nodes, nodes)) / nodes
    slack = mean - gamma * (numpy.eye(nodes) - average) + average
    constraints = [p >= 0, p <= 1, cvxpy.sum(p) <= budget * len(matchings), slack >> 0]
    cvxpy.Problem(cvxpy.Maximize(gamma), constraints).solve(solver=solver)
    # Solvers violate constraints by their tolerance: make the solution feasible before evaluating it.
    inside = numpy.clip(p.value, 0, 1)
    inside *= min(1, budget * len(matchings) / inside.sum())
    value = numpy.linalg.eigvalsh(sum(x * l for x, l in zip(inside, laplacians)))[1]
    return float(value)


def within(limit, function, *arguments):
    """Returns (seconds, result) of a call in a separate process, or None if it was stopped or failed."""
    queue = multiprocessing.Queue()
    process = multiprocessing.Process(target=lambda: queue.put(timed(lambda: function(*arguments), 1)))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.terminate()
        process.join()
        return None
    return queue.get() if process.exitcode == 0 else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--upwash", default="target/release/upwash")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 256, 1024])
    args = parser.parse_args()

    print("workers links | color: count seconds | eigenvalues | cvxpy: solver lambda_2 seconds")
    given_up = set()
    for nodes in args.sizes:
        p = 7.8 / max(nodes - 1, 8)
        spec = f"erdos-renyi:{nodes},p={p!r},seed=1,connected"
        command = [args.upwash, "topology", "optimize", spec, "--budget", "0.5", "--json"]
        start = time.perf_counter()
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        whole = time.perf_counter() - start
        links = [tuple(link) for matching in ours["matchings"] for link in matching]
        graph = networkx.Graph(links)
        seconds, colors = timed(lambda: color(graph), 3)
        eigen, _ = timed(lambda: numpy.linalg.eigvalsh(laplacian(nodes, links)), 3)
        print(f"{nodes} {len(links)} | {len(set(colors.values()))} {seconds:.4f} | {eigen:.5f} | ", end="")
        for solver in ["CLARABEL", "SCS"]:
            if solver in given_up:
                print(f"{solver} not tried  ", end="", flush=True)
                continue
            found = within(args.limit, matcha, nodes, ours["matchings"], 0.5, solver)
            if found:
                print(f"{solver} {found[1]:.6f} {found[0]:.3f}  ", end="", flush=True)
            else:
                print(f"{solver} stopped after {args.limit:.0f}  ", end="", flush=True)
                given_up.add(solver)
        print(f"| upwash: {len(ours['matchings'])} matchings, {ours['matcha']['lambda2']:.6f}, whole program {whole:.3f}")


if __name__ == "__main__":
    main()
