"""`python -m upwash.launch -n 8 script.py`: starts a script in several processes on this machine, one for each worker.

Each process finds the addresses and keys of all in its environment, where `upwash.torch.Decentralized` looks for them.
A worker that fails or is killed does not end the others.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from . import _upwash
from ._processes import KEY, LAUNCHER, PEERS
from ._temporary import TemporaryFolder

_PORTS = range(10_000, 32_000)
"""Below the ports that the system gives to outgoing connections."""
_GRACE = 30.0
"""Seconds that workers have to end after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the launcher. Returns 0 if all workers ended with exit code 0, 1 if one did not, 130 after Ctrl-C."""
    args = _parse(arguments)
    folder = TemporaryFolder("upwash-launch-")
    keys = [Path(folder.path) / f"worker-{worker}.key" for worker in range(args.n)]
    peers = Path(folder.path) / "peers.toml"
    _write_peers(peers, keys)
    command = [args.script, *args.arguments] if args.no_python else [sys.executable, args.script, *args.arguments]
    return _Workers(command, peers, keys, args.restarts).run()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m upwash.launch",
        description="Starts a script in several processes on this machine, one for each worker.",
        epilog="On several machines, run the script itself on each, with a configuration that lists all workers.",
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="the number of workers")
    parser.add_argument(
        "--restarts", type=int, default=0, metavar="N", help="start a worker again that fails, at most N times each"
    )
    parser.add_argument("--no-python", action="store_true", help="the script is a program of its own")
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    args = parser.parse_args(arguments)
    if not 1 <= args.n <= 4096:
        parser.error(f"-n {args.n}: must be from 1 to 4096")
    if args.restarts < 0:
        parser.error(f"--restarts {args.restarts}: must be at least 0")
    if not args.no_python and not Path(args.script).is_file():
        parser.error(f"there is no file {args.script}")
    return args


def _write_peers(path: Path, keys: list[Path]) -> None:
    """Makes keys and free addresses, and lists them."""
    first = os.getpid() * 97 % len(_PORTS)
    free: list[socket.socket] = []
    try:
        # All are bound at once, so that the ports differ.
        for port in (*_PORTS[first:], *_PORTS[:first]):
            if len(free) == len(keys):
                break
            listener = socket.socket()
            try:
                listener.bind(("127.0.0.1", port))
                free.append(listener)
            except OSError:
                listener.close()
        if len(free) < len(keys):
            raise SystemExit(
                f"error: this machine has fewer than {len(keys)} free ports from {_PORTS[0]} to {_PORTS[-1]}"
            )
        text = "[network]\npeers = [\n"
        for listener, key in zip(free, keys, strict=True):
            text += f'  {{ address = "127.0.0.1:{listener.getsockname()[1]}", key = "{_upwash.new_key(key)}" }},\n'
        path.write_text(text + "]\n", encoding="utf-8")
    finally:
        for listener in free:
            listener.close()


class _Workers:
    """The processes of all workers."""

    def __init__(self, command: list[str], peers: Path, keys: list[Path], restarts: int) -> None:
        self._command = command
        self._peers = peers
        self._keys = keys
        self._restarts = [restarts] * len(keys)
        self._output = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._failed: set[int] = set()

    def _start(self, worker: int) -> "subprocess.Popen[str]":
        own = {PEERS: str(self._peers), KEY: str(self._keys[worker]), LAUNCHER: "1"}
        # Workers share the cores, unless the user divides them.
        cores = max(1, (os.cpu_count() or 1) // len(self._keys))
        shared = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores)), "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            self._command,
            env={**os.environ, **shared, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C reaches this process, which passes it on.
            start_new_session=True,
        )
        assert process.stdout is not None
        reader = threading.Thread(target=self._copy, args=(worker, process.stdout), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _copy(self, worker: int, lines: IO[str]) -> None:
        for line in lines:
            self._print(f"[{worker}] {line.rstrip()}")

    def _print(self, text: str) -> None:
        with self._output:
            try:
                print(text, flush=True)
            except OSError:
                pass  # nobody reads it any more; the workers go on

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            for worker in range(len(self._keys)):
                self._processes.append(self._start(worker))
            self._wait()
        except KeyboardInterrupt:
            return self._interrupt()
        for reader in self._readers:
            reader.join(5.0)
        return 1 if self._failed else 0

    def _wait(self) -> None:
        running = set(range(len(self._processes)))
        while running:
            for worker in sorted(running):
                code = self._processes[worker].poll()
                if code is None:
                    continue
                if code != 0 and self._restarts[worker] > 0:
                    self._restarts[worker] -= 1
                    self._print(f"worker {worker} {_how(code)}: starting it again")
                    self._processes[worker] = self._start(worker)
                    continue
                running.discard(worker)
                if code != 0:
                    self._failed.add(worker)
                    self._print(f"worker {worker} {_how(code)}; {self._remedy(worker, running)}")
            time.sleep(0.05)

    def _remedy(self, worker: int, running: set[int]) -> str:
        if not running:
            return "no worker is left"
        variables = f"{PEERS}={self._peers} {KEY}={self._keys[worker]}"
        return f"the others go on; to start it again: {variables} {shlex.join(self._command)}"

    def _interrupt(self) -> int:
        self._signal(signal.SIGINT)
        deadline = time.monotonic() + _GRACE
        try:
            while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
                time.sleep(0.05)
        except KeyboardInterrupt:
            pass
        self._signal(signal.SIGKILL)
        return 130

    def _signal(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
