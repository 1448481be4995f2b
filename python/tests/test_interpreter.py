"""Ctrl-C, forks, threads and the end of the interpreter leave nothing broken."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import upwash

PRELUDE = """
import os, signal, sys, threading, time, upwash
LONG = {"graph.topology": "ring:4", "training.epochs": 100000}
def interrupt_after(seconds, times=1):
    def send():
        for _ in range(times):
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
"""


def python(code, timeout=120, **options):
    """Runs code in an interpreter of its own."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def test_ctrl_c_leaves_a_checkpoint_and_raises(tmp_path):
    done = python(f"""
        interrupt_after(0.5)
        try:
            upwash.train(LONG, out={str(tmp_path / "run")!r}, progress=False)
        except KeyboardInterrupt as error:
            print("interrupted:", error.__notes__[0])
        print(upwash.train({{"graph.topology": "ring:4", "training.epochs": 1}}, progress=False).status)
    """)
    assert "interrupted: upwash: to continue the run" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "finished"
    assert list((tmp_path / "run").glob("*.upwash")), "no checkpoint"
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.3])
def test_ctrl_c_at_any_moment_leaves_a_usable_interpreter(seconds):
    done = python(f"""
        class Slow(upwash.Algorithm):
            def plan(self, view):
                return view.weights()
        for algorithm in (None, Slow()):
            try:
                interrupt_after({seconds})
                upwash.train(LONG, algorithm=algorithm, callbacks=lambda event: None, progress=False)
            except KeyboardInterrupt:
                print("interrupted")
            print(upwash.Graph("ring:4").contraction() > 0)
    """)
    assert done.stdout.split() == ["interrupted", "True"] * 2, done.stderr


def test_a_second_ctrl_c_ends_an_algorithm_that_does_not_return():
    done = python("""
        class Endless(upwash.Algorithm):
            def plan(self, view):
                while True:
                    pass
        interrupt_after(0.5, times=3)
        try:
            upwash.train(LONG, algorithm=Endless(), progress=False)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert done.stdout.startswith("interrupted"), done.stderr


def test_ctrl_c_ends_a_long_computation():
    done = python("""
        interrupt_after(0.3)
        try:
            upwash.Graph("ring:3000").analyze()
        except KeyboardInterrupt:
            print("interrupted")
        os._exit(0)
    """)
    assert done.stdout.strip() == "interrupted", done.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_a_matrix_without_memory_is_an_exception():
    done = python("""
        import resource
        import numpy as np
        large, matrix = upwash.Graph("ring:12000"), np.zeros((6000, 6000))
        analyzed = upwash.Graph("ring:4000")
        used = resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, -1))
        for action in (large.adjacency, large.laplacian, lambda: large.mixing("metropolis"),
                       lambda: upwash.Graph(matrix), analyzed.spectrum):
            try:
                action()
            except upwash.errors.GraphError as error:
                print(error)
        print(large.nodes)
    """)
    *texts, nodes = done.stdout.splitlines()
    assert (len(texts), nodes) == (5, "12000"), done.stderr
    needed = [text.split(" needs ")[-1].split(" while")[0] for text in texts]
    assert needed == ["2.3 GB", "2.3 GB", "1.2 GB", "0.3 GB", "0.5 GB"]


def test_the_interpreter_ends_while_a_run_is_going():
    done = python("""
        class Mine(upwash.Algorithm):
            def plan(self, view):
                return view.weights()
        threading.Thread(target=upwash.train, args=(LONG,), kwargs={"algorithm": Mine(), "progress": False}, daemon=True).start()
        time.sleep(0.5)
        print("ending")
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "ending"), done.stderr


ENDLESS = {
    "train": "upwash.train(LONG, algorithm=Endless(), progress=False)",
    "fleet": """
    from upwash.torch import Fleet
    fleet = Fleet(lambda: torch.nn.Linear(4, 2), graph="ring:4", algorithm=Endless())
    fleet.step(torch.randn(4, 2, 4), torch.zeros(4, 2, dtype=torch.long), torch.nn.functional.cross_entropy)
    """,
    "worker": """
    from upwash.torch import Decentralized
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    Decentralized(sgd, model, graph="complete:1", algorithm=Endless()).step(loss=1.0)
    """,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_the_interpreter_ends_while_an_algorithm_does_not_return(name):
    if name != "train":
        pytest.importorskip("torch")
    done = python(f"""
import upwash._ending
if {name != "train"}:
    import torch
upwash._ending.INTERRUPT_AFTER = 0.5
class Endless(upwash.Algorithm):
    def plan(self, view):
        planning.set()
        while True:
            pass
def run():
    {ENDLESS[name].strip()}
planning = threading.Event()
threading.Thread(target=run, daemon=True).start()
planning.wait()
print("ending")
""")
    assert (done.returncode, done.stdout.strip()) == (0, "ending"), done.stderr


def test_a_forked_child_can_train_and_compute():
    upwash.train({"graph.topology": "ring:4", "training.epochs": 1}, progress=False)
    done = python("""
        upwash.train({"training.epochs": 1}, progress=False)
        upwash.Graph("ring:300").contraction()
        child = os.fork()
        if child == 0:
            run = upwash.train({"training.epochs": 1}, progress=False)
            print(run.status, round(upwash.Graph("ring:300").contraction(), 3), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """)
    assert done.stdout.strip() == "finished 1.0", done.stderr


def test_a_fork_while_a_run_is_going_leaves_the_parent_alone():
    done = python("""
        def fork(event):
            if event.event == "round" and event.round == 3:
                child = os.fork()
                if child == 0:
                    raise SystemExit(7)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        run = upwash.train({"training.epochs": 1}, callbacks=fork, progress=False)
        print(run.status)
    """)
    assert done.stdout.split() == ["7", "finished"], done.stderr


def test_a_child_that_another_thread_forks_during_a_run_ends():
    done = python("""
        kwargs = {"progress": False}
        threading.Thread(target=upwash.train, args=(LONG,), kwargs=kwargs, daemon=True).start()
        while not upwash.training._running:
            time.sleep(0.01)
        time.sleep(0.3)
        for code in range(3, 6):
            child = os.fork()
            if child == 0:
                sys.exit(code)  # with everything that the interpreter does at its end
            deadline = time.monotonic() + 20
            ended = 0
            while not ended and time.monotonic() < deadline:
                ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.01)
            if not ended:
                os.kill(child, signal.SIGKILL)
            print(os.waitstatus_to_exitcode(status) if ended else "hangs", flush=True)
    """)
    assert done.stdout.split() == ["3", "4", "5"], done.stderr


def test_ctrl_c_without_a_folder_keeps_the_run_as_long_as_the_process():
    done = python("""
        interrupt_after(0.5)
        try:
            upwash.train(LONG, progress=False)
        except KeyboardInterrupt as error:
            folder = error.__notes__[0].split("out='")[1].split("'")[0]
            print(upwash.load(folder)[0].status)
            print(folder)
    """)
    status, folder = done.stdout.split()
    assert status == "interrupted", done.stderr
    assert not os.path.exists(folder)


def test_a_panic_is_an_exception():
    done = python("""
        class Panics(upwash.Algorithm):
            def plan(self, view):
                # As if Rust code had panicked: pyo3 panics when it sees this exception.
                raise next(kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException")("a test")
        try:
            upwash.Graph("no graph")
        except upwash.errors.GraphError:
            pass  # pyo3 creates its exception when it sees the first one
        try:
            upwash.train(LONG, algorithm=Panics(), progress=False)
        except upwash.errors.InternalError as error:
            print(error)
    """)
    assert "an error in upwash itself" in done.stdout, done.stderr


def test_runs_on_several_threads_at_once():
    found = []

    def train(seed):
        config = {"graph.topology": "ring:3", "training.epochs": 1, "seed": seed}
        found.append((seed, upwash.train(config, progress=False).summary.mean_accuracy))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert len({value for seed, value in found if seed == 1}) == 1


def test_a_run_without_its_follower_ends(tmp_path):
    before = threading.active_count()
    session = upwash._upwash.Session(
        "training.epochs = 100000",
        [],
        "",
        dataset=None,
        algorithm=None,
        output=str(tmp_path / "run"),
        resume=False,
        threads=None,
        every_event=True,
        transport=None,
    )
    assert session.next_event(5.0)
    del session
    # The thread ends by itself.
    deadline = time.monotonic() + 30
    while not (tmp_path / "run" / "summary.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert upwash.load(tmp_path / "run")[0].status == "interrupted"
    assert threading.active_count() == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
