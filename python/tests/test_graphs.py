"""Graphs and theory, against numpy, networkx and the program."""

import copy
import json
import pickle
import subprocess

import networkx
import numpy as np
import pytest
import scipy.sparse

import upwash
from upwash.errors import GraphError

SPECS = ["paper:L1", "ring:8", "torus:3x4", "star:6", "complete:5", "erdos-renyi:12,p=0.5,seed=3"]


@pytest.mark.parametrize("spec", SPECS)
def test_matrices_agree_with_networkx_and_numpy(spec):
    graph = upwash.Graph(spec)
    reference = graph.to_networkx()
    nodes = range(graph.nodes)
    np.testing.assert_array_equal(graph.adjacency(), networkx.to_numpy_array(reference, nodelist=nodes))
    laplacian = networkx.laplacian_matrix(reference, nodelist=nodes).toarray()
    np.testing.assert_array_equal(graph.laplacian(), laplacian)
    np.testing.assert_allclose(graph.spectrum(), np.linalg.eigvalsh(laplacian.astype(float)), atol=1e-9)
    assert graph.is_connected == networkx.is_connected(reference)
    for weights in ["optimal", "metropolis"]:
        mixing = graph.mixing(weights)
        np.testing.assert_allclose(mixing.sum(axis=0), 1, atol=1e-12)
        disagreement = mixing - np.full_like(mixing, 1 / graph.nodes)
        if graph.is_connected:
            assert graph.contraction(weights) == pytest.approx(np.linalg.norm(disagreement, 2) ** 2, abs=1e-9)


def test_a_graph_goes_to_other_packages_and_back():
    graph = upwash.Graph("paper:L1")
    dense = graph.adjacency()
    same = [graph.to_networkx(), dense, dense.tolist(), scipy.sparse.csr_array(dense), graph]
    for other in same:
        assert upwash.Graph(other) == graph, type(other)
    letters = networkx.Graph([("a", "b"), ("b", "c")])
    assert upwash.Graph(letters).edges.tolist() == [[0, 1], [1, 2]]
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert len({graph, upwash.Graph(dense)}) == 1


def test_matcha_is_within_its_budget_and_no_worse_than_equal_probabilities():
    matcha = upwash.Graph("paper:L1").matcha(0.5)
    probabilities = matcha.probabilities
    assert probabilities.sum() <= 0.5 * len(probabilities) + 1e-9
    laplacian = np.zeros((8, 8))
    for probability, matching in zip(probabilities, matcha.matchings, strict=True):
        for u, v in matching:
            laplacian[[u, v], [u, v]] += probability
            laplacian[[u, v], [v, u]] -= probability
    assert matcha.lambda2 == pytest.approx(np.linalg.eigvalsh(laplacian)[1], abs=1e-9)
    assert matcha.lambda2 > 0.5 * upwash.Graph("paper:L1").spectrum()[1]


def test_rounds_of_a_schedule_have_the_drawn_matchings():
    graph = upwash.Graph("paper:L1")
    schedule = graph.matcha(0.5).schedule(seed=7)
    counts = np.zeros(len(graph.matchings))
    for k in range(2000):
        round = schedule.round(k)
        counts[round.matchings] += 1
        expected = {tuple(link) for j in round.matchings for link in graph.matchings[j].tolist()}
        assert {tuple(link) for link in round.links.tolist()} == expected
        np.testing.assert_allclose(round.mixing.sum(axis=1), 1)
    np.testing.assert_allclose(counts / 2000, graph.matcha(0.5).probabilities, atol=0.05)


def test_leaders_are_the_published_matrix():
    graph, w = upwash.Graph("paper:L1"), 0.2
    leaders = graph.leaders(0.1, 0.1)
    best, degree = leaders.best_leaders(list(range(8))), leaders.degree_leaders()
    expected = (1 - w) * graph.mixing() + 0.1 * np.eye(8)[best] + 0.1 * np.eye(8)[degree]
    np.testing.assert_allclose(leaders.matrix(best, degree), expected)
    bound, _, _ = leaders.contraction_worst()
    assert leaders.contraction(best, degree) <= bound + 1e-12


def test_an_analysis_is_what_the_program_prints(program):
    graph = upwash.Graph("paper:L1")
    command = [
        program,
        "topology",
        "analyze",
        "paper:L1",
        "--budget",
        "0.5",
        "--rotate",
        "3",
        "--leaders",
        "0.1,0.1",
        "--json",
    ]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert graph.analyze(budget=0.5, rotate=3, leaders=(0.1, 0.1)).to_dict() == printed
    assert upwash.Graph(graph.adjacency()).analyze().graph is None


def test_mixing_matrices_can_be_sparse():
    graph = upwash.Graph("paper:L1")
    sparse = graph.mixing("metropolis", sparse=True)
    assert isinstance(sparse, scipy.sparse.csr_array)
    np.testing.assert_array_equal(sparse.toarray(), graph.mixing("metropolis"))
    round = graph.matcha(0.5).schedule(seed=1).round(7)
    np.testing.assert_array_equal(round.sparse_mixing().toarray(), round.mixing)
    directed = upwash.Schedule.directed(3, [(0, 1), (1, 2)]).round(0)
    np.testing.assert_array_equal(directed.sparse_mixing().toarray(), directed.mixing)
    large = upwash.Graph("ring:60000")
    assert large.mixing("metropolis", sparse=True).nnz == 180_000
    # And back, without a dense matrix between.
    matrix = large.mixing("metropolis", sparse=True)
    matrix.setdiag(0)
    assert upwash.Graph(matrix) == large


def same_rounds(one, other):
    for k in (0, 1, 2, 9):
        np.testing.assert_array_equal(one.round(k).links, other.round(k).links)
        np.testing.assert_array_equal(one.round(k).mixing, other.round(k).mixing)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_graphs_and_theory_can_be_pickled_and_copied(again, tmp_path):
    graph = upwash.Graph("paper:L1")
    own = upwash.Graph.from_matchings(4, [[(0, 1), (2, 3)], [(1, 2)]])
    (tmp_path / "graph.matchings").write_text(own.matchings_file())
    for each in (graph, own, upwash.Graph(f"matchings:{tmp_path / 'graph.matchings'}")):
        assert again(each) == each
        assert [it.tolist() for it in again(each).matchings] == [it.tolist() for it in each.matchings]
    matcha, rotation, leaders = graph.matcha(0.5), graph.rotation(3), graph.leaders(0.2, 0.1, weights=graph.mixing())
    np.testing.assert_array_equal(again(matcha).probabilities, matcha.probabilities)
    assert (again(matcha).rho, again(rotation).lambda2_mean) == (matcha.rho, rotation.lambda2_mean)
    np.testing.assert_array_equal(again(rotation).relabelings, rotation.relabelings)
    assert again(leaders).contraction_random() == leaders.contraction_random()
    for schedule in (
        graph.schedule(weights="metropolis"),
        graph.schedule(weights=graph.mixing()).averaging_every(3),
        graph.schedule("random-matching", seed=5),
        matcha.schedule(weights="uniform", seed=3).rotating(rotation, "random", seed=4),
        upwash.Schedule.directed(3, [(0, 1), (1, 2), (2, 0)]),
    ):
        same_rounds(again(schedule), schedule)


def test_the_schedule_of_an_experiment_is_not_pickled():
    schedule = upwash.Experiment({"graph.topology": "ring:4"}).schedule
    for each in (schedule, schedule.averaging_every(2)):
        with pytest.raises(TypeError, match="pickle the configuration of the experiment"):
            pickle.dumps(each)


def test_drawings_are_svg(tmp_path):
    graph = upwash.Graph("paper:L1")
    assert graph._repr_svg_().startswith("<svg")
    path = graph.draw(copies=3).save(tmp_path / "rotation.svg")
    assert path.read_text().count("copy") >= 2


LARGE = upwash.Graph("ring:60000").schedule("alternating")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: upwash.Graph("rign:8"), "did you mean `ring`"),
        (lambda: upwash.Graph("ring:1"), "ring:1"),
        (lambda: upwash.Graph.from_edges(3, [(0, 3)]), "node 3 is out of range"),
        (lambda: upwash.Graph.from_edges(3, [(0, 1, 2)]), "link 0 is"),
        (lambda: upwash.Graph.from_edges(3, [(0, -1)]), "link 0 is"),
        (lambda: upwash.Graph.from_edges(3, 7), "pairs of worker numbers"),
        (lambda: upwash.Graph(np.zeros((2, 3))), "2x3"),
        (lambda: upwash.Graph(np.array([[0, 1], [0, 0]])), "not symmetric"),
        (lambda: upwash.Graph(np.array([["a"]])), "matrix of numbers"),
        (lambda: upwash.Graph(np.array([[0, np.nan], [np.nan, 0]])), r"entry \(0, 1\) is NaN: expected finite"),
        (lambda: upwash.Graph([[0, 1], [1, float("inf")]]), r"entry \(1, 1\) is inf: expected finite"),
        (lambda: upwash.Graph(scipy.sparse.csr_array([[0, np.nan], [np.nan, 0]])), r"entry \(0, 1\) is NaN"),
        (lambda: upwash.Graph(scipy.sparse.lil_array([[0, 1], [np.inf, 0]])), r"entry \(1, 0\) is inf"),
        (lambda: upwash.Graph("ring:4").mixing(np.full((4, 4), np.nan)), r"weights: entry \(0, 0\) is NaN"),
        (lambda: upwash.Graph(networkx.DiGraph([(0, 1)])), "directed"),
        (lambda: upwash.Graph("ring:4").mixing("best"), "unknown weights"),
        (lambda: upwash.Graph("ring:4").mixing(np.eye(3)), "4 rows"),
        (lambda: upwash.Graph("ring:4").matcha(2), "out of range"),
        (lambda: upwash.Graph("ring:4").leaders(0.9, 0.9), "at most 1"),
        (lambda: upwash.Graph("ring:4").leaders().matrix([0], [0]), "each of 4 workers"),
        (lambda: upwash.Graph("ring:4").rotation(0), "at least 1 copy"),
        (lambda: upwash.Graph("ring:4").schedule("all"), "unknown"),
        (lambda: upwash.Graph("ring:4").neighbors(4), "worker 4"),
        (lambda: upwash.Graph("ring:4").neighbors(-1), "-1 is out of range: expected a whole number from 0"),
        (lambda: upwash.Graph("ring:4").neighbors(2**70), "1180591620717411303424 is out of range"),
        (lambda: upwash.Graph("ring:4").rotation(-1), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").rotation(relabelings=[[0, 1, 2, -3]]), "-3 is out of range"),
        (lambda: upwash.Graph("ring:4").analyze(rotate=-1), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").draw(copies=-1), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").leaders().matrix([0, 1, 2, -1], [0, 1, 2, 3]), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").leaders().contraction([0, 1, 2, 3], [0, 1, 2, -1]), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").schedule(seed=-1), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").matcha(0.5).schedule(seed=-1), "-1 is out of range"),
        (lambda: upwash.Graph("ring:4").schedule().averaging_every(-1), "-1 is out of range"),
        (lambda: upwash.Graph.from_edges(-4, []), "-4 is out of range"),
        (lambda: upwash.Graph.from_matchings(-4, []), "-4 is out of range"),
        (lambda: upwash.Schedule.directed(-4, []), "-4 is out of range"),
        (lambda: upwash.Schedule.directed(0, []), "at least one worker"),
        (lambda: upwash.Schedule.directed(10**12, []), "too large"),
        (lambda: upwash.Graph.from_edges(10**12, []), "too large"),
        (lambda: upwash.Graph.from_matchings(10**12, [[(0, 1)]]), "too large"),
        (lambda: upwash.Graph("ring:1000000000000"), "too many"),
        (lambda: upwash.Graph("ring:60000").matcha(1.0), "too many for eigenvalues"),
        (lambda: upwash.Graph("ring:60000").rotation(2), "too many for eigenvalues"),
        (lambda: upwash.Graph("ring:60000").leaders(), "too many for eigenvalues"),
        (lambda: LARGE.averaging_every(2).possible_links(), "too many for a dense matrix"),
        (lambda: LARGE.averaging_every(2).round(1).mixing, "too many for a dense matrix"),
        (lambda: upwash.Graph(scipy.sparse.coo_array(([], ([], [])), shape=(10**12, 10**12))), "too large"),
        (lambda: upwash.Graph(scipy.sparse.csr_array((2, 3))), "2x3"),
        (lambda: upwash.Graph("ring:5000").analyze(), "too many to analyze"),
        (lambda: upwash.Graph("ring:5000").draw(), "too many to draw"),
        (lambda: upwash.Graph("ring:60000").adjacency(), "too many for a dense matrix"),
        (lambda: upwash.Graph("ring:60000").mixing("metropolis"), "too many for a dense matrix"),
        (lambda: upwash.Graph("ring:60000").spectrum(), "too many for eigenvalues"),
        (lambda: upwash.Graph("ring:60000").mixing(), "too many for eigenvalues"),
    ],
)
def test_what_is_no_graph_is_refused(build, text):
    with pytest.raises(GraphError, match=text):
        build()


@pytest.mark.parametrize("value", [3, None, [[1, "a"]], object()])
def test_other_types_are_type_errors(value):
    with pytest.raises(TypeError):
        upwash.Graph(value)
