"""Existing loops of PyTorch as workers: `upwash.torch.Decentralized`."""

import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import upwash
from upwash.errors import ConfigError, RunError

torch = pytest.importorskip("torch")

import loops  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import upwash.torch as ut  # noqa: E402

LOOPS = Path(__file__).with_name("loops.py")


def start(name, folder, *options, workers=4, **environment):
    command = [sys.executable, "-m", "upwash.launch", "-n", str(workers), *options, str(LOOPS), name, str(folder)]
    environment = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def launch(name, folder, *options, workers=4, timeout=300):
    process = start(name, folder, *options, workers=workers)
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def test_every_algorithm_gives_the_losses_of_upwash_train(tmp_path):
    code, output = launch("agree", tmp_path)
    assert code == 0, output
    found = [dict(np.load(tmp_path / f"worker-{worker}.npz")) for worker in range(loops.WORKERS)]
    known_names = {f"{name}/{momentum}" for name in loops.BETWEEN_PROCESSES for momentum in (0.0, 0.9)}
    assert set(found[0]) == known_names
    for name in loops.BETWEEN_PROCESSES:
        for momentum in (0.0, 0.9):
            config = loops.configuration(name, momentum)
            losses = losses_of_upwash_train(config)
            assert len(losses) >= loops.ROUNDS
            for worker in range(loops.WORKERS):
                known, text = losses[: loops.ROUNDS, worker], f"{name}, {momentum}"
                found_losses = found[worker][f"{name}/{momentum}"]
                np.testing.assert_allclose(found_losses, known, rtol=1e-5, atol=1e-5, err_msg=text)


@pytest.mark.skipif(importlib.util.find_spec("upwash._upwash_mpi") is None, reason="built without MPI")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_ranks_of_mpi_have_the_losses_of_upwash_train(tmp_path):
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = ["mpirun", "--oversubscribe", "-n", "4", sys.executable, LOOPS, "rank", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = losses_of_upwash_train(loops.configuration("dpsgd", 0.9))
    for worker in range(4):
        found = np.load(tmp_path / f"rank-{worker}.npy")
        np.testing.assert_allclose(found, losses[: loops.ROUNDS, worker], rtol=1e-5, atol=1e-5)
    assert upwash.load(tmp_path / "run")[0].summary.rounds == loops.ROUNDS


def losses_of_upwash_train(config):
    """The losses of every round and worker, in one process."""
    losses = []

    def keep(event):
        if event.event == "round":
            losses.append(event.losses)

    upwash.train(config, callbacks=keep, progress=False)
    return np.array(losses)


def test_algorithms_cover_all_that_can_be_used():
    """A new synchronous algorithm belongs into the list of the test above."""
    listed = {algorithm["name"] for algorithm in loops.ALGORITHMS.values()}
    with pytest.raises(ConfigError) as unknown:
        upwash.Experiment({"algorithm.name": "none"})
    names = set(re.findall(r"[a-z0-9-]+", str(unknown.value).partition("one of")[2])) - {"and", "or"}
    assert listed < names
    refused = set()
    for name in names - listed:
        graph = "star:2" if name in ("async-easgd", "downpour") else "complete:1"
        model = torch.nn.Linear(2, 2)
        with pytest.raises(ConfigError) as error:
            ut.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, graph=graph, algorithm=name)
        refused.add(name)
        assert "momentum" in str(error.value) or "choose a synchronous algorithm" in str(error.value)
    assert refused == {"decentlam", "qg-momentum", "ad-psgd", "gosgd", "async-easgd", "downpour"}


def test_features_of_loops_work_between_processes(tmp_path):
    code, output = launch("features", tmp_path)
    assert code == 0, output
    reports = [json.loads((tmp_path / f"features-{worker}.json").read_text()) for worker in range(4)]
    for report in reports:
        assert np.mean(report["losses"][-5:]) < np.mean(report["losses"][:5])
        assert report["frozen_is_kept"]
        np.testing.assert_allclose(report["trained"], reports[0]["trained"], rtol=1e-5, atol=1e-6)
    # Averaged with neighbors, statistics are closer to each other than to the start.
    statistics = np.array([report["statistics"] for report in reports])
    assert statistics.std(axis=0).max() < 0.2 * np.abs(statistics).max()
    runs = upwash.load(tmp_path / "run")
    assert runs[0].summary.workers == 4
    assert len(runs[0].events) > 30


# A single worker of D-PSGD is the wrapped optimizer alone, so everything can be compared with PyTorch.


def digits():
    data = upwash.Experiment({"graph.topology": "complete:1", "training.batch_size": 16, "algorithm.name": "dpsgd"})
    return [tuple(torch.from_numpy(part) for part in data.batch(0, round)) for round in range(20)]


def network(seed=0):
    torch.manual_seed(seed)
    return loops.batch_norm()


def alone(optimizer, model, **options):
    return ut.Decentralized(optimizer, model, graph="complete:1", algorithm="dpsgd", **options)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 3e-3),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schedulers_clipping_and_accumulation_are_those_of_pytorch(name):
    def train(wrap):
        model = network()
        inner = OPTIMIZERS[name](model.parameters())
        opt = wrap(inner, model)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=11)
        losses = []
        for round in range(10):
            opt.zero_grad()
            for x, y in digits()[2 * round : 2 * round + 2]:
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if wrap is alone:
                opt.step(loss=loss)
            else:
                opt.step()
            scheduler.step()
            losses.append(loss.item())
        return losses, model.state_dict()

    with_upwash, plain = train(alone), train(lambda inner, model: inner)
    np.testing.assert_allclose(with_upwash[0], plain[0], rtol=2e-5)
    for name, tensor in plain[1].items():
        torch.testing.assert_close(with_upwash[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_a_step_that_amp_skips_is_a_step_of_zero():
    model = network()
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = digits()[0]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    model[0].weight.grad[0] = float("inf")
    scaler.step(opt, loss=1.0)
    scaler.update()
    assert opt.round == 1
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert scaler.get_scale() == 512.0
    # The next step is taken, with gradients without the scale.
    reference = network()
    plain = torch.optim.SGD(reference.parameters(), 0.1)
    reference(x), F.cross_entropy(reference(x), y).backward()
    plain.step()
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    torch.testing.assert_close(model[5].weight, reference[5].weight, rtol=1e-4, atol=1e-6)


def test_closures_are_passed_on():
    model = torch.nn.Linear(3, 1)
    opt = alone(torch.optim.LBFGS(model.parameters(), 0.5), model)
    x, y = torch.randn(20, 3), torch.randn(20, 1)

    def closure():
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    first = opt.step(closure).item()
    for _ in range(5):
        last = opt.step(closure).item()
    assert last < first


def test_tensors_keep_their_order_in_memory():
    model = network().to(memory_format=torch.channels_last)
    weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    model[0] = torch.nn.Conv2d(3, 4, 3)
    model[0].weight = weight
    expected = weight.detach().clone()
    strides = weight.stride()
    alone(torch.optim.SGD(model[0].parameters(), 0.1), model[0])
    assert model[0].weight.stride() == strides
    assert torch.equal(model[0].weight, expected)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("algorithm", ["dpsgd", "slowmo", "gradient-tracking", "d2", "choco"])
def test_a_resumed_worker_continues_as_if_it_had_not_stopped(algorithm, tmp_path):
    batches = digits()

    def worker(**options):
        model = network()
        inner = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        return model, ut.Decentralized(inner, model, graph="complete:1", algorithm=algorithm, rounds=20, **options)

    def steps(model, opt, batches):
        losses = []
        for x, y in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss=loss)
            losses.append(loss.item())
        return losses

    model, opt = worker()
    known = steps(model, opt, batches)
    model, opt = worker(out=tmp_path / "run")
    steps(model, opt, batches[:12])
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "state.pt")
    steps(model, opt, batches[12:14])
    opt.close()
    assert opt.summary.status == "interrupted"
    state = torch.load(tmp_path / "state.pt")
    model, opt = worker(out=tmp_path / "run")
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["optimizer"])
    assert opt.round == 12
    np.testing.assert_allclose(steps(model, opt, batches[12:]), known[12:], rtol=1e-5)
    opt.close()
    assert opt.summary.status == "finished"
    rounds = upwash.load(tmp_path / "run")[0].events.query("event == 'round'")["round"]
    assert list(rounds) == list(range(20))


def test_a_run_ends_after_its_rounds():
    model = torch.nn.Linear(2, 2)
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model, rounds=2)
    for _ in range(2):
        opt.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        opt.step()
    opt.zero_grad()
    assert opt.status == "finished"
    with pytest.raises(ut.RunEnded, match="raise rounds=") as error:
        opt.step()
    assert error.value.status == "finished"
    opt.close()
    opt.close()
    assert opt.summary.rounds == 2


def test_a_loss_that_is_not_a_number_ends_the_run():
    model = torch.nn.Linear(2, 2)
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    with pytest.raises(ut.RunEnded, match="smaller learning rate"):
        opt.step(loss=float("nan"))


def test_algorithms_in_python_can_be_used():
    class Shrink(upwash.Algorithm):
        def plan(self, view):
            return [(view.worker, 0.5)]

    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    opt = ut.Decentralized(torch.optim.SGD(model.parameters(), 0.0), model, graph="complete:1", algorithm=Shrink())
    opt.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    opt.step()
    torch.testing.assert_close(model.weight, 0.5 * before)

    class Broken(upwash.Algorithm):
        def plan(self, view):
            raise ZeroDivisionError("mine")

    model = torch.nn.Linear(2, 2)
    opt = ut.Decentralized(torch.optim.SGD(model.parameters(), 0.0), model, graph="complete:1", algorithm=Broken())
    with pytest.raises(ZeroDivisionError, match="mine"):
        opt.step()


def run_script(code, *, workers=1, timeout=120, options=()):
    """Runs a script under the launcher. Returns the exit code and the output."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text("import torch, upwash.torch as ut\nimport sys\n" + textwrap.dedent(code))
        command = [sys.executable, "-m", "upwash.launch", "-n", str(workers), *options, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        return done.returncode, done.stdout + done.stderr


def test_a_worker_that_a_function_forgets_still_ends_its_run(tmp_path):
    code, output = run_script(
        f"""
        def main():
            model = torch.nn.Linear(2, 2)
            sgd = torch.optim.SGD(model.parameters(), 0.1)
            opt = ut.Decentralized(sgd, model, algorithm="dpsgd", out={str(tmp_path / "run")!r})
            for _ in range(3):
                opt.step(loss=1.0)
        main()
        """,
        workers=2,
    )
    assert code == 0, output
    runs = upwash.load(tmp_path / "run")
    assert runs[0].status == "finished"
    assert (tmp_path / "run" / "peer-0" / "model.safetensors").exists()


ENDINGS = {
    "falls off its end": ("pass", "finished"),
    "succeeds": ("sys.exit(0)", "finished"),
    "leaves": ("exit()", "finished"),
    "succeeds in a block": ("with opt: sys.exit()", "finished"),
    "fails": ("sys.exit(1)", "interrupted"),
    "says why": ("exit('why')", "interrupted"),
    "fails in a block": ("with opt: raise SystemExit(2)", "interrupted"),
    "raises": ("1 / 0", "interrupted"),
    "catches": ("try: 1 / 0\nexcept ZeroDivisionError: sys.exit(2)", "interrupted"),
    "goes on": ("try: sys.exit(1)\nexcept SystemExit: opt.step(loss=1.0)", "finished"),
}


@pytest.mark.parametrize("place", ["config", "overrides"])
def test_peers_may_be_listed_in_a_dict(place, tmp_path):
    key = tmp_path / "worker.key"
    peers = [{"address": "127.0.0.1:7399", "key": upwash._upwash.new_key(key)}]
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    options = {place: {"network.peers": peers}, "algorithm": "dpsgd", "out": tmp_path / "run"}
    with pytest.raises(ConfigError, match="which of them is this one"):
        ut.Decentralized(sgd, model, **options)
    with ut.Decentralized(sgd, model, key=key, **options) as opt:
        opt.step(loss=1.0)
    assert upwash.load(tmp_path / "run" / "peer-0")[0].status == "finished"


def test_a_program_that_fails_interrupts_its_run(tmp_path):
    code = f"""
import os, sys, torch, upwash.torch as ut
for name, (ending, _) in {ENDINGS!r}.items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    model = torch.nn.Linear(2, 2)
    opt = ut.Decentralized(
        torch.optim.SGD(model.parameters(), 0.1), model, graph="complete:1", algorithm="dpsgd", out=sys.argv[1] + "/" + name
    )
    opt.step(loss=1.0)
    exec(ending)
    break
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    found = {name: upwash.load(tmp_path / name)[0].status for name in ENDINGS}
    assert found == {name: status for name, (_, status) in ENDINGS.items()}


def test_loops_of_unequal_length_do_not_wait_for_each_other():
    """The second worker takes more steps, and its last `zero_grad` begins a round that nobody else is in."""
    code, output = run_script(
        """
        model = torch.nn.Linear(2, 2)
        opt = ut.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, algorithm="dpsgd")
        for _ in range(5 + 5 * opt.worker):
            opt.step(loss=1.0)
            opt.zero_grad()
        opt.close()
        print(opt.summary.status, opt.summary.rounds_run)
        """,
        workers=2,
        timeout=60,
    )
    assert code == 0, output
    assert "[0] finished 5" in output and "[1] finished 10" in output


def test_models_of_different_shapes_do_not_meet():
    code, output = run_script(
        """
        import logging
        logging.basicConfig()
        model = torch.nn.Linear(2, 2 + int(sys.argv[0].endswith("none")))
        import os
        if "worker-1" in os.environ["UPWASH_KEY"]:
            model = torch.nn.Linear(2, 3)
        network = {"startup_timeout_seconds": 2.0, "isolation_seconds": 2.0, "heartbeat_seconds": 0.2,
                   "failure_timeout_seconds": 1.0, "message_timeout_seconds": 2.0}
        opt = ut.Decentralized(torch.optim.SGD(model.parameters(), 0.1), model, {"network": network}, algorithm="dpsgd")
        opt.step(loss=1.0)
        """,
        workers=2,
    )
    assert code == 1
    assert "same script, model and configuration" in output
    assert "refused" in output or "missing" in output


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    def train(rounds):
        model = torch.nn.Linear(2, 2)
        opt = alone(torch.optim.SGD(model.parameters(), 0.1), model, out=tmp_path / "run")
        with opt:
            for _ in range(rounds):
                opt.step()

    train(30)
    with pytest.raises(upwash.errors.RunDirectoryError, match="holds a run already"):
        train(3)
    assert len(upwash.load(tmp_path / "run")[0].events.query("event == 'round'")) == 30


def test_a_schedule_resumes_with_the_rate_of_before(tmp_path):
    """SlowMo rescales what it keeps when the learning rate changes."""

    def worker():
        model = network()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        opt = ut.Decentralized(inner, model, graph="complete:1", algorithm="slowmo")
        return model, opt, torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)

    def steps(model, opt, scheduler, batches):
        losses = []
        for x, y in batches:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step(loss=loss)
            scheduler.step()
            losses.append(loss.item())
        return losses

    known = steps(*worker(), digits())
    model, opt, scheduler = worker()
    steps(model, opt, scheduler, digits()[:10])
    state = [part.state_dict() for part in (model, opt, scheduler)]
    torch.save(state, tmp_path / "state.pt")
    model, opt, scheduler = worker()
    for part, saved in zip((model, opt, scheduler), torch.load(tmp_path / "state.pt"), strict=True):
        part.load_state_dict(saved)
    np.testing.assert_allclose(steps(model, opt, scheduler, digits()[10:]), known[10:], rtol=1e-5)


def test_a_skipped_step_may_have_any_loss():
    model = network()
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = digits()[0]
    loss = F.cross_entropy(model(x), y) * float("inf")
    scaler.scale(loss).backward()
    scaler.step(opt, loss=loss)
    scaler.update()
    assert opt.status is None and opt.round == 1


def test_a_wrong_loss_changes_nothing():
    model = torch.nn.Linear(2, 2)
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    model(torch.ones(1, 2)).sum().backward()
    before = model.weight.detach().clone()
    with pytest.raises(ConfigError, match="one number"):
        opt.step(loss=torch.ones(3))
    assert torch.equal(model.weight, before) and opt.round == 0
    opt.step(loss=1.0)
    assert not torch.equal(model.weight, before)


def test_hooks_of_steps_run():
    model = torch.nn.Linear(2, 2)
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    seen = []
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    opt.register_step_post_hook(lambda *_: seen.append("after"))
    opt.step()
    assert seen == ["before", "after"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_ends_its_workers(number, tmp_path):
    process = start("survive", tmp_path, workers=4)
    deadline = time.monotonic() + 120
    while not all((tmp_path / f"round-{worker}").exists() for worker in range(4)) and time.monotonic() < deadline:
        time.sleep(0.1)
    pids = [int((tmp_path / f"round-{worker}").read_text().split()[0]) for worker in range(4)]
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Mistakes:
    """Each raises an exception that says what to do."""

    def linear(self, **options):
        model = torch.nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), 0.1, **options)

    def two_types(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
        alone(torch.optim.SGD(model.parameters(), 0.1), model)

    def half(self):
        model = torch.nn.Linear(2, 2).bfloat16()
        alone(torch.optim.SGD(model.parameters(), 0.1), model)

    def foreign(self):
        model, _ = self.linear()
        alone(torch.optim.SGD([torch.nn.Parameter(torch.ones(5))], 0.1), model)

    def frozen(self):
        model, sgd = self.linear()
        model.requires_grad_(False)
        alone(sgd, model)

    def wrapped_twice(self):
        model, sgd = self.linear()
        alone(alone(sgd, model), model)

    def used_twice(self):
        model, sgd = self.linear()
        first = alone(sgd, model)
        alone(sgd, model)
        first.close()

    def assigned(self):
        model, sgd = self.linear()
        opt = alone(sgd, model)
        model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
        opt.step()

    def moved(self):
        model, sgd = self.linear()
        opt = alone(sgd, model)
        model.double()
        opt.step()

    def without_loss(self):
        model, sgd = self.linear()
        ut.Decentralized(sgd, model, graph="complete:1", algorithm="al-dsgd").step()

    def vector_loss(self):
        model, sgd = self.linear()
        alone(sgd, model).step(loss=torch.ones(3))

    def no_peers_file(self):
        model, sgd = self.linear()
        ut.Decentralized(sgd, model, "none/peers.toml")

    def many_without_peers(self):
        model, sgd = self.linear()
        ut.Decentralized(sgd, model, graph="ring:8", algorithm="dpsgd")

    def no_key(self):
        model, sgd = self.linear()
        peers = [{"address": "localhost:1", "key": "sha256:" + "0" * 64}] * 2
        ut.Decentralized(sgd, model, {"network": {"peers": peers}}, algorithm="dpsgd")

    def key_is_missing(self):
        model, sgd = self.linear()
        peers = [{"address": "localhost:1", "key": "sha256:" + "0" * 64}] * 2
        ut.Decentralized(sgd, model, {"network": {"peers": peers}}, algorithm="dpsgd", key="none.key")

    def other_transport(self):
        model, sgd = self.linear()
        alone(sgd, model, transport="nccl")

    def clipped(self):
        model, sgd = self.linear()
        ut.Decentralized(sgd, model, graph="complete:1", algorithm={"name": "dpsgd", "robust": "clip"})

    def no_rounds(self):
        model, sgd = self.linear()
        alone(sgd, model, rounds=0)

    def late_state(self):
        model, sgd = self.linear()
        opt = alone(sgd, model)
        opt.step()
        opt.load_state_dict(opt.state_dict())

    def other_state(self):
        model, sgd = self.linear()
        slow = ut.Decentralized(sgd, model, graph="complete:1", algorithm="slowmo")
        state = slow.state_dict()
        model, sgd = self.linear()
        alone(sgd, model).load_state_dict(state)

    def unfrozen(self):
        model, sgd = self.linear()
        model.bias.requires_grad_(False)
        opt = alone(sgd, model)
        model.bias.requires_grad_(True)
        opt.step()

    def not_toml(self):
        model, sgd = self.linear()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "peers.toml"
            path.write_text("graph = [")
            ut.Decentralized(sgd, model, path)

    def more_parameters(self):
        model, sgd = self.linear()
        alone(sgd, model).add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


EXPECTED = {
    "two_types": ".float()",
    "half": "torch.autocast",
    "foreign": "create it from model.parameters()",
    "frozen": "requires_grad=False",
    "wrapped_twice": "wrap one optimizer once",
    "used_twice": "close it first",
    "assigned": "assign=False",
    "moved": "call .to()",
    "without_loss": "step(loss=loss)",
    "vector_loss": "one number",
    "no_peers_file": "cannot read none/peers.toml",
    "many_without_peers": "upwash.launch -n 8",
    "no_key": "upwash keys new",
    "key_is_missing": "upwash keys new none.key",
    "other_transport": 'write "mpi"',
    "clipped": 'robust = "clip"',
    "no_rounds": "rounds = 0",
    "late_state": "right after creating",
    "other_state": "it has the vectors",
    "unfrozen": "requires_grad",
    "not_toml": "TOML",
    "more_parameters": "before Decentralized",
}


@pytest.mark.parametrize("mistake", EXPECTED)
def test_mistakes_are_explained(mistake):
    with pytest.raises((ConfigError, RunError)) as error:
        getattr(Mistakes(), mistake)()
    assert EXPECTED[mistake] in str(error.value)


def test_a_child_of_the_process_leaves_the_worker_alone():
    model = torch.nn.Linear(2, 2)
    opt = alone(torch.optim.SGD(model.parameters(), 0.1), model)
    opt.step()
    child = os.fork()
    if child == 0:
        try:
            opt.step()
        except RunError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    opt.step()
    assert opt.round == 2


def test_the_launcher_reports_failures_and_restarts(tmp_path):
    code, output = launch("fail", tmp_path, "--restarts", "1", workers=3)
    assert code == 1
    assert "[0] worker 0 of 3" in output
    assert output.count("[1] worker 1 of 3") == 2
    assert "worker 1 ended with exit code 3: starting it again" in output
    assert re.search(
        r"worker 2 ended with exit code 3; (the others go on; to start it again: UPWASH_PEERS=|no worker is left)",
        output,
    )


def test_the_launcher_refuses_what_it_cannot_start(tmp_path):
    def refused(*arguments):
        done = subprocess.run([sys.executable, "-m", "upwash.launch", *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        return done.stderr

    assert "there is no file none.py" in refused("-n", "2", "none.py")
    assert "must be from 1" in refused("-n", "0", str(LOOPS))
    assert "--restarts -1" in refused("-n", "2", "--restarts", "-1", str(LOOPS))


def test_survivors_lose_nothing_when_one_of_four_is_killed(tmp_path):
    """Kills one worker again and again. UPWASH_KILLS chooses how often."""
    kills = int(os.environ.get("UPWASH_KILLS", "3"))
    chooser = random.Random(7)
    process = start("survive", tmp_path, "--restarts", str(kills))

    def at(worker):
        """The process of a worker, and its round."""
        try:
            pid, round = (tmp_path / f"round-{worker}").read_text().split()
            return int(pid), int(round)
        except (OSError, ValueError):
            return None, 0

    def wait(condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert process.poll() is None and time.monotonic() < deadline, "the workers do not go on"
            time.sleep(0.02)

    try:
        victims = []
        for _ in range(kills):
            # One at a time: if most were away, those that come back would be the majority, and begin again.
            wait(lambda: all(at(worker)[0] not in (None, *victims) for worker in range(4)))
            worker = chooser.randrange(4)
            time.sleep(chooser.uniform(0.0, 1.0))
            wait(lambda worker=worker: at(worker)[0] is not None)
            victims.append(at(worker)[0])
            os.kill(victims[-1], signal.SIGKILL)
        wait(lambda: all(at(worker)[0] not in (None, *victims) for worker in range(4)))
        rounds = max(at(worker)[1] for worker in range(4)) + 1000
        (tmp_path / "last").write_text(str(rounds))
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert output.count("was killed by signal 9: starting it again") == kills

    reports = [json.loads((tmp_path / f"survivor-{worker}.json").read_text()) for worker in range(4)]
    for worker, report in enumerate(reports):
        summary = report["summary"]
        assert summary["rounds"] == rounds, output
        # Who was not killed since its start ran every round; who came back missed some.
        assert summary["rounds_run"] + summary["rounds_skipped"] - summary["rounds_repeated"] == rounds, (
            worker,
            summary,
        )
        assert report["run"] == summary["rounds_run"]
    experiment = upwash.Experiment(loops.UNSATURATED)
    epochs = -(-rounds // experiment.rounds_per_epoch)
    training = {**loops.UNSATURATED["training"], "epochs": epochs, "learning_rate": 0.0012 / max(3, kills)}
    one = upwash.train({**loops.UNSATURATED, "training": training}, progress=False).model("torch")
    reference = accuracy(experiment, one)
    assert 0.2 < reference < 0.93, "the task is saturated, or too short"
    for worker in range(4):
        found = accuracy(experiment, torch.load(tmp_path / f"survivor-{worker}.pt"))
        assert found > reference - 0.02, f"worker {worker}: {found}, and {reference} in one process"


def accuracy(experiment, tensors):
    """The part of all training examples that a model classifies correctly."""
    batches = [experiment.batch(w, k) for w in range(4) for k in range(experiment.rounds_per_epoch)]
    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*batches, strict=True))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model.load_state_dict(tensors)
    return float((model(x).argmax(1) == y).float().mean())


EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_examples_run(tmp_path):
    plain = subprocess.run([sys.executable, EXAMPLES / "nano_gpt.py"], capture_output=True, text=True, timeout=300)
    assert plain.returncode == 0, plain.stderr
    for script, workers, arguments in (("nano_gpt_decentralized.py", 3, []), ("resnet.py", 2, ["1", "4"])):
        command = [sys.executable, "-m", "upwash.launch", "-n", str(workers), EXAMPLES / script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        if script == "resnet.py":
            assert done.stdout.count("% of the test pictures are right") == workers
        else:
            losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
            assert max(losses[-workers:]) < min(losses[:workers])


def test_a_loop_becomes_decentralized_in_three_lines():
    """And a fourth line that gives every worker other data."""
    plain, decentralized = (
        (EXAMPLES / name).read_text().splitlines() for name in ("nano_gpt.py", "nano_gpt_decentralized.py")
    )
    added = [line for line in decentralized[1:] if line and line not in plain]
    assert added == [
        "import upwash.torch as ut",
        "opt = ut.Decentralized(torch.optim.AdamW(model.parameters(), 3e-3), model)",
        "draw = torch.Generator().manual_seed(1337 + opt.worker)",
        "    opt.step(loss=loss)",
    ]
