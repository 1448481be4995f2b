"""The graphs of fleets, replayed on the CPU, and compiled replicas."""

import pytest
from fleets import CASES, METROPOLIS, F, Recorder, convolutional, linear, noise, sgd, torch, with_graphs

import upwash.torch
from upwash.torch import Fleet
from upwash.torch._fleet_batches import identity


def test_functions_that_compute_the_same_share_a_graph():
    def weighted(weight):
        return lambda model, batch: weight * model(batch).sum()

    assert identity(weighted(1.0)) == identity(weighted(1.0)) != identity(weighted(2.0))
    assert identity(F.cross_entropy) == identity(F.cross_entropy) != identity(F.mse_loss)


@pytest.mark.parametrize(
    "name", ["al-dsgd", "choco-random-k", "d2", "gossip-pga", "easgd", "lsgd", "dpsgd-clip", "slowmo"]
)
@pytest.mark.parametrize("optimizer", [sgd(0.9), lambda parameters: torch.optim.AdamW(parameters, 0.01)])
@pytest.mark.filterwarnings("ignore:algorithm.robust")
def test_replayed_steps_are_those_that_run_eagerly(name, optimizer):
    graph, algorithm = CASES[name]

    def losses(prepare):
        fleet = prepare(Fleet(linear, config={"graph": graph, "algorithm": algorithm}, optimizer=optimizer))
        scheduler = torch.optim.lr_scheduler.StepLR(fleet.optimizer, 4, 0.5)
        found = []
        for round, (x, y) in enumerate(noise(8, 24)):
            size = 5 if round % 5 == 4 else 8  # a short last batch
            found.append(fleet.step(x[:, :size], y[:, :size], lambda output, y: F.cross_entropy(output, y)))
            scheduler.step()
        return torch.stack(found), fleet

    known, eager = losses(lambda fleet: fleet)
    found, fleet = losses(lambda fleet: with_graphs(fleet, Recorder()))
    assert torch.allclose(found, known, rtol=1e-5)
    assert torch.allclose(fleet._store.model, eager._store.model, atol=1e-5)
    assert fleet.captured == {"gradients": True, "optimizer": True, "exchange": True}
    assert eager.captured == {"gradients": False, "optimizer": False, "exchange": False}
    assert isinstance(fleet.optimizer.param_groups[0]["lr"], float)


class Lion(torch.optim.Optimizer):
    """Keeps its rate in Python."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def test_what_cannot_be_captured_runs_eagerly_and_says_so():
    fleet = Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=Lion)
    known = Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=Lion)
    with pytest.warns(UserWarning, match="optimizer's step runs eagerly.*Lion has no option capturable"):
        with_graphs(fleet, Recorder("no .item() here"))
    with pytest.warns(UserWarning, match="no .item") as caught:
        for x, y in noise(4, 8):
            found = fleet.step(x, y, F.cross_entropy)
            assert torch.equal(found, known.step(x, y, F.cross_entropy))
    said = sorted(str(warning.message).split(" runs")[0] for warning in caught)
    assert said == ["the exchange", "the gradient computation"]
    assert not any(fleet.captured.values())


def test_exchanges_of_too_many_structures_run_eagerly_and_say_so(monkeypatch):
    monkeypatch.setattr(upwash.torch._fleet_optimizer, "MAX_STRUCTURES", 1)
    config = {"graph": METROPOLIS, "algorithm": {"name": "gossip-pga", "period": 4}}
    fleet, known = with_graphs(Fleet(linear, config=config), Recorder()), Fleet(linear, config=config)
    with pytest.warns(UserWarning, match="an exchange runs eagerly.*graphs for 1 exchanges of another") as caught:
        for round, (x, y) in enumerate(noise(8, 12)):
            assert torch.allclose(fleet.step(x, y, F.cross_entropy), known.step(x, y, F.cross_entropy), rtol=1e-5)
            assert fleet.captured["exchange"] == (round in (1, 2))
    assert len(caught) == 1


def test_a_loss_that_fails_once_is_not_counted():
    fleet = with_graphs(Fleet(linear, graph="ring:4", algorithm="dpsgd"), Recorder())
    ((x, y),) = noise(4, 1)
    fleet.step(x, y, F.cross_entropy)
    handle = fleet.models[2].weight.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fleet.step(x, y, F.cross_entropy)
    handle.remove()
    graphs = fleet._gradients._graphs
    assert graphs._expected == int(graphs._count) == 2


def test_options_that_change_are_captured_again():
    recorder = Recorder()
    fleet = with_graphs(Fleet(linear, graph="ring:4", algorithm="dpsgd", optimizer=sgd(0.9)), recorder)
    data = list(noise(4, 1)) * 4
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    captures = recorder.captures
    fleet.optimizer.param_groups[0]["momentum"] = 0.5
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    assert recorder.captures == captures + 1
    fleet.load_state_dict(fleet.state_dict())
    for x, y in data:
        fleet.step(x, y, F.cross_entropy)
    assert fleet.captured["optimizer"] and recorder.captures == captures + 2
    # New losses in every step are too many graphs.
    with pytest.warns(UserWarning, match="other forms of batches and losses.*pad batches"):
        for weight in range(8):
            fleet.step(x, y, lambda output, y, weight=weight: weight * F.cross_entropy(output, y))
    assert not fleet.captured["gradients"]


def test_compiled_replicas():
    compiled = Fleet(convolutional, graph="ring:2", algorithm="dpsgd", compile={"backend": "aot_eager"}, seed=1)
    plain = Fleet(convolutional, graph="ring:2", algorithm="dpsgd", seed=1)
    for x, y in noise(2, 3, (1, 8, 8)):
        found = compiled.step(x, y, F.cross_entropy)
        assert torch.allclose(found, plain.step(x, y, F.cross_entropy), rtol=1e-4)
    assert torch.allclose(compiled.models[0][1].running_mean, plain.models[0][1].running_mean, atol=1e-6)
