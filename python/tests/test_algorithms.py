"""Algorithms in Python: the same as in Rust, and harmless when they are wrong."""

import subprocess
import sys

import numpy as np
import pytest

import upwash
from upwash.errors import AlgorithmError, RunDirectoryError

SMALL = {"graph.topology": "paper:L1", "training": {"epochs": 2}}


class Dpsgd(upwash.Algorithm):
    """D-PSGD in Python."""

    def plan(self, view):
        return view.weights()


class Choco(upwash.Algorithm):
    """CHOCO-SGD in Python, with top-k compression: x' = y + step (W c - c) for the public copies c."""

    state_vectors = {"public copy": "zero"}
    starts_equal = False

    def messages(self, view):
        return [upwash.Message({"model": 1, "step": -1}, public_copy="public copy", compression="top-k:0.25")]

    def plan(self, view):
        step = 0.3
        mixed = [(sender, step * weight) for sender, weight in view.weights().items()]
        own = {"model": 1, "step": -1}
        return upwash.Plan([upwash.Assignment("model", messages=[*mixed, (view.worker, -step)], own=own)])


class LocalSgd(upwash.Algorithm):
    """An average of all models, by an all-reduce, every second round."""

    starts_equal = True

    def exchanges(self, round):
        return ["mean"] if round % 2 else ["nothing"]

    def plan(self, view):
        return upwash.Plan([upwash.Assignment(mean=1.0)]) if view.round % 2 else upwash.Plan.alone()


def losses(run):
    return [event["losses"] for event in run._events() if event["event"] == "round"]


def train(algorithm=None, **config):
    return upwash.train(SMALL, overrides={"algorithm": config} if config else None, algorithm=algorithm, progress=False)


def test_an_algorithm_gives_the_bits_of_the_same_one_in_rust():
    assert losses(train(Dpsgd())) == losses(train(name="dpsgd"))


def test_state_vectors_and_compression_work_as_in_rust():
    choco = {"name": "choco", "compressor": "top-k", "part": 0.25, "consensus_step": 0.3}
    assert losses(train(Choco())) == losses(train(**choco))


def test_exchanges_may_differ_between_rounds():
    assert losses(train(LocalSgd())) == losses(train(name="local-sgd", period=2))


def test_what_a_view_knows():
    views = []

    class Curious(upwash.Algorithm):
        def plan(self, view):
            views.append((view.round, view.worker, view.workers, view.learning_rate, view.loss, view.degree))
            assert [message.worker for message in view.received] == upwash.Graph("paper:L1").neighbors(
                view.worker
            ).tolist()
            return view.weights(lazy=True)

    run = train(Curious())
    assert run.config["algorithm"]["name"] == "custom:Curious"
    round, worker, workers, rate, loss, degree = views[9]
    assert (round, worker, workers, rate, degree) == (1, 1, 8, 0.05, 5)
    assert loss == losses(run)[1][1]


def test_state_is_resumed_with_the_same_bits(tmp_path):
    def stop(event):
        if event.event == "round" and event.round == 10:
            raise upwash.StopTraining

    upwash.train(SMALL, algorithm=Choco(), out=tmp_path / "run", callbacks=stop, progress=False)
    whole = upwash.train(SMALL, algorithm=Choco(), out=tmp_path / "run", resume=True, progress=False)
    assert losses(whole) == losses(train(Choco()))


class Broken(Dpsgd):
    def plan(self, view):
        if view.round == 5 and view.worker == 3:
            raise ZeroDivisionError("in my plan")
        return super().plan(view)


def test_an_exception_ends_the_run_with_its_traceback(tmp_path):
    with pytest.raises(ZeroDivisionError, match="in my plan") as caught:
        upwash.train(SMALL, algorithm=Broken(), out=tmp_path / "run", progress=False)
    assert caught.traceback[-1].name == "plan"
    assert "round 5" in caught.value.__notes__[0]
    assert max(event.get("round", 0) for event in upwash.load(tmp_path / "run")[0]._events()) == 4
    # The interpreter is as before.
    assert train(Dpsgd()).status == "finished"


def answers(answer):
    return type("Answers", (upwash.Algorithm,), {"plan": lambda self, view: answer})()


@pytest.mark.parametrize(
    ("algorithm", "kind", "text"),
    [
        (answers(None), TypeError, "returned None"),
        (answers(3), AlgorithmError, "dict or a list"),
        (answers({99: 1.0}), AlgorithmError, "message of worker 99"),
        (answers({"a": 1.0}), AlgorithmError, "not the number of a worker"),
        (answers({0: float("nan")}), AlgorithmError, "finite|has none"),
        (answers({0: "a"}), AlgorithmError, "not a number"),
        (answers([(0, 1, 2)]), AlgorithmError, "list of"),
        (answers(upwash.Plan([upwash.Assignment("velocity")])), AlgorithmError, "velocity"),
        (answers(upwash.Plan([upwash.Assignment("step")])), AlgorithmError, "cannot assign to the step"),
        (answers(upwash.Plan([upwash.Assignment(mean=1.0)])), AlgorithmError, "mean"),
        (answers(upwash.Plan([upwash.Assignment(messages={0: 1}, message_index=3)])), AlgorithmError, "message 3"),
        (answers({-1: 1.0}), AlgorithmError, "not the number of a worker"),
        (answers(upwash.Plan([upwash.Assignment(messages={0: 1}, message_index=-1)])), AlgorithmError, "-1 is out of"),
        (answers(upwash.Plan([upwash.Assignment(messages={0: 1})], leaders=(0, -1))), AlgorithmError, "-1 is out of"),
        (answers(upwash.Plan([3])), AttributeError, "target"),
        (upwash.Algorithm(), NotImplementedError, "no method plan"),
    ],
)
def test_invalid_plans_end_the_run(algorithm, kind, text):
    with pytest.raises(kind, match=text):
        train(algorithm)


@pytest.mark.parametrize(
    ("attributes", "kind", "text"),
    [
        ({"state_vectors": {"a": "one"}}, AlgorithmError, "starts as"),
        ({"state_vectors": {"model": "zero"}}, AlgorithmError, "every worker has"),
        ({"state_vectors": 3}, AlgorithmError, "dict"),
        ({"exchanges": lambda self, round: ["all"]}, AlgorithmError, 'exchange "all" is unknown'),
        ({"exchanges": lambda self, round: 1 / 0}, ZeroDivisionError, "by zero"),
        ({"messages": lambda self, view: [{"velocity": 1}]}, AlgorithmError, "velocity"),
        ({"messages": lambda self, view: [upwash.Message({"model": 1}, "copy")]}, AlgorithmError, "copy"),
        ({"matcha_budget": 3.0}, upwash.errors.GraphError, "budget of 3"),
        ({"has_server": True}, upwash.UpwashError, "needs a server"),
    ],
)
def test_invalid_declarations_are_refused(attributes, kind, text):
    with pytest.raises(kind, match=text):
        train(type("Declared", (Dpsgd,), attributes)())


def test_a_run_of_an_algorithm_cannot_be_resumed_without_it(tmp_path):
    upwash.train(SMALL, algorithm=Dpsgd(), out=tmp_path / "run", progress=False)
    with pytest.raises((upwash.errors.ConfigError, RunDirectoryError), match="supplied by another program|custom"):
        upwash.train(tmp_path / "run" / "config.toml", out=tmp_path / "other", progress=False)


def test_an_algorithm_is_compared_with_a_built_in_one():
    options = {"seeds": 2, "overrides": {"training.epochs": 1}, "progress": False}
    comparison = upwash.compare({"mine": Dpsgd(), "theirs": {"algorithm.name": "dpsgd"}}, **options)
    assert comparison.differences("theirs")["difference"].tolist() == [0.0]


SOURCE = """
class Mine(upwash.Algorithm):
    def __init__(self, part=0.5):
        self.part = part
    def plan(self, view):
        rest = 1 - PART
        return [(sender, rest * weight) for sender, weight in view.weights().items()] + [(view.worker, PART)]
"""


def mine(source=SOURCE, **names):
    """The class as a notebook defines it in a cell."""
    names = {"upwash": upwash, "PART": 0.5, **names}
    exec(source, names)
    return names["Mine"]


def test_a_run_is_continued_only_with_the_same_algorithm(tmp_path):
    def continued(algorithm):
        return upwash.train(SMALL, algorithm=algorithm, out=tmp_path / "run", resume=True, progress=False)

    assert continued(mine()()).status == "finished"
    commented = SOURCE.replace("        rest", "        # the rest\n        rest")
    assert continued(mine(commented)()).status == "finished"
    edited = SOURCE.replace("1 - PART", "0.9 - PART")
    for other in (mine(edited)(), mine()(0.25), mine(PART=0.25)(), type("Mine", (mine(edited),), {})()):
        with pytest.raises(RunDirectoryError, match="the algorithm has other code or other parameters now"):
            continued(other)


def test_a_comparison_does_not_use_runs_of_another_algorithm(tmp_path):
    options = {"seeds": 2, "out": tmp_path, "overrides": {"training.epochs": 1}, "progress": False}
    first = upwash.compare({"mine": mine()()}, **options)
    assert upwash.compare({"mine": mine()()}, **options)["mine"][1].summary == first["mine"][1].summary
    with pytest.raises(RunDirectoryError, match="other code"):
        upwash.compare({"mine": mine(SOURCE.replace("1 - PART", "0.9 - PART"))()}, **options)


def test_messages_are_asked_for_once():
    asked = []

    class Asked(Dpsgd):
        def messages(self, view):
            asked.append((view.round, view.worker))
            assert view.received == []
            return super().messages(view)

    run = train(Asked())
    later = [each for each in asked if each[0] > 0]
    assert len(later) == len(set(later)) == 8 * (run.summary.rounds - 1)


def test_weights_of_the_same_sender_are_added():
    class Twice(upwash.Algorithm):
        def plan(self, view):
            return [(sender, weight / 2) for sender, weight in view.weights().items()] * 2

    np.testing.assert_allclose(losses(train(Twice())), losses(train(Dpsgd())), rtol=1e-4)


def test_the_benchmark_prints_both_languages():
    benchmark = "benchmarks/plans.py"
    command = [sys.executable, benchmark, "--rounds", "50"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "Python" in printed and "Rust" in printed
