"""Fleets refuse wrong input, and say what to do."""

import itertools
import subprocess
import sys

import pytest
from fleets import F, convolutional, linear, noise, torch

from upwash.errors import ConfigError, DataError
from upwash.torch import Fleet

SHARED = torch.nn.Linear(64, 10)
ONCE = torch.nn.Linear(64, 10)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ONCE, "same module twice"),
        (lambda: torch.nn.Sequential(SHARED), "share the parameter 0.weight"),
        (lambda: linear().double(), "weight of replica 0 is float64.*autocast"),
        (lambda: torch.nn.ReLU(), "no parameters"),
        (lambda: torch.nn.LazyLinear(10), "no shape yet"),
        (lambda: torch.nn.Sequential(linear(), torch.nn.Linear(10, 10, device="meta")), "several devices.*device="),
    ],
)
def test_wrong_models(make, text):
    with pytest.raises(ConfigError, match=text):
        Fleet(make, graph="ring:4", algorithm="dpsgd")


def test_models_of_different_shapes():
    widths = itertools.count(3)
    with pytest.raises(ConfigError, match=r"weight has the shape \(10, 4\) in replica 1, but \(10, 3\)"):
        Fleet(lambda: torch.nn.Linear(next(widths), 10), graph="ring:4")
    with pytest.raises(TypeError, match="returned a int"):
        Fleet(lambda: 3, graph="ring:4")


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"algorithm": "nothing"}, ConfigError, "nothing"),
        ({"algorithm": 3}, TypeError, "a name or an instance"),
        ({"budgett": 0.5}, ConfigError, "budgett"),
        ({"workers": 5, "graph": "ring:4"}, ConfigError, "workers = 5.*4 nodes"),
        ({"workers": 0}, ConfigError, "at least 1"),
        ({"rounds": 0}, ConfigError, "at least 1"),
        ({"statistics": "shared"}, ConfigError, "shared"),
        ({"capture": True}, ConfigError, "CUDA device"),
        ({"leaders": "verified"}, ConfigError, "verified.*leave it out"),
        ({"optimizer": lambda parameters: 3}, TypeError, "returned a int"),
        ({"optimizer": lambda parameters: torch.optim.SGD(parameters[1:], 0.1)}, ConfigError, "1 of 16 parameters"),
        (
            {"optimizer": lambda parameters: torch.optim.SGD([*parameters, torch.nn.Parameter(torch.ones(1))], 0.1)},
            ConfigError,
            "not of this fleet",
        ),
    ],
)
def test_wrong_options(options, kind, text):
    with pytest.raises(kind, match=text):
        Fleet(linear, **options)


def test_wrong_steps():
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd")
    ((x, y),) = noise(4, 1)
    for arguments, kind, text in [
        ((x[:3], y, F.cross_entropy), DataError, r"x: a tensor of shape \(3, 8, 64\).*must be 4"),
        ((list(x), list(y)[1:], F.cross_entropy), DataError, "y: 3 entries, but 4"),
        ((x, y, 3), TypeError, "not a function"),
        ((x,), TypeError, "step takes"),
        ((3, y, F.cross_entropy), TypeError, "x: a tensor or a list"),
        ((x, y, lambda output, y: output), TypeError, r"shape \(8, 10\): take its mean"),
        ((x, y, lambda output, y: 1.0), TypeError, "not float"),
        ((x, y, lambda output, y: output.detach().sum()), TypeError, "does not depend"),
    ]:
        with pytest.raises(kind, match=text):
            fleet.step(*arguments)
        fleet._is_broken = False
    fleet.step(x, y, F.cross_entropy)


def test_wrong_states():
    fleet = Fleet(linear, graph="ring:4", algorithm="d2")
    state = fleet.state_dict()
    for change, text in [
        ({"algorithm": "D-PSGD"}, "the state is of D-PSGD"),
        ({"models": state["models"][:3]}, "3 workers"),
        ({"vectors": {}}, "missing or of another model"),
        ({"models": [convolutional().state_dict()] * 4}, "load_state_dict"),
    ]:
        with pytest.raises(ConfigError, match=text):
            fleet.load_state_dict({**state, **change})
    with pytest.raises(ConfigError, match="progress missing"):
        fleet.load_state_dict({key: value for key, value in state.items() if key != "progress"})


@pytest.mark.parametrize(
    "replace",
    [
        lambda model: model.load_state_dict(convolutional().state_dict(), assign=True),
        lambda model: model.double(),
        lambda model: setattr(model[4], "bias", torch.nn.Parameter(torch.zeros(10))),
        lambda model: setattr(model[1], "running_var", torch.ones(3)),
    ],
)
@pytest.mark.parametrize("replica", [0, 2])
def test_a_replica_whose_tensors_were_replaced_is_refused(replace, replica):
    fleet = Fleet(convolutional, graph="ring:3", algorithm="dpsgd")
    ((x, y),) = noise(3, 1, (1, 8, 8))
    fleet.models[replica].load_state_dict(convolutional().state_dict())
    for _ in range(4):
        fleet.step(x, y, F.cross_entropy)
    replace(fleet.models[replica])
    with pytest.raises(ConfigError, match=f"of replica {replica} is no longer.*assign=False.*make_model"):
        for _ in range(3):  # one replica is checked in each step
            fleet._check_usable()


def test_a_fleet_belongs_to_its_process():
    code = """
import os, torch, upwash
from upwash.torch import Fleet
fleet = Fleet(lambda: torch.nn.Linear(4, 2), graph="ring:4", algorithm="dpsgd")
x, y = torch.randn(4, 2, 4), torch.zeros(4, 2, dtype=torch.long)
torch.set_num_threads(1)
fleet.step(x, y, torch.nn.functional.cross_entropy)
if os.fork() == 0:
    try:
        fleet.consensus_distance()
        fleet._begin()
    except upwash.errors.RunError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
fleet.step(x, y, torch.nn.functional.cross_entropy)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
