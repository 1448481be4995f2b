#!/usr/bin/env bash
# Trains on three hosts (network namespaces at 100 Mbit/s), over MPI and between peers, and checks that both give the
# same losses as one process. UPWASH is the path of the program, built with `--features mpi`. Needs root.
set -euo pipefail
upwash=$(realpath "${UPWASH:?set UPWASH to the path of the program, built with --features mpi}")
source "$(dirname "$0")/hosts.sh"
make_hosts 3 100mbit
work=$(mktemp -d)
cd "$work"
cat > config.toml << 'EOF'
model = "mlp:64"
[data]
partition = "iid"
[graph]
topology = "path:3"
[training]
epochs = 3
batch_size = 16
EOF
"$upwash" train config.toml --out one > one.log

mpirun_on 3 "$upwash" train config.toml --transport mpi --out mpi > mpi.log
losses() { python3 -c 'import json, sys; print([n["train_loss"] for n in json.load(open(sys.argv[1]))["per_worker"]])' "$1/summary.json"; }
[[ $(losses one) == "$(losses mpi)" ]] || { echo "the losses over MPI on three hosts differ from those of one process"; exit 1; }
echo "MPI on three hosts: same losses as one process"

{ cat config.toml; echo '[network]'; echo 'startup_timeout_seconds = 60.0'; } > peers.toml
for id in 0 1 2; do
  mkdir "host-$id"
  key=$(cd "host-$id" && "$upwash" keys new | grep -o 'sha256:[0-9a-zA-Z+/=]*' | head -1)
  printf '[[network.peers]]\naddress = "%s:7101"\nkey = "%s"\n' "$(address_of $id)" "$key" >> peers.toml
done
sent() { on_host "$1" cat /sys/class/net/eth0/statistics/tx_bytes; }
before=$(sent 1)
peers=()
for id in 0 1 2; do
  cp peers.toml "host-$id/config.toml"
  (cd "host-$id" && on_host "$id" timeout 120 "$upwash" peer config.toml --id "$id" --out out > log 2>&1) &
  peers+=($!)
done
for id in 0 1 2; do
  wait "${peers[$id]}" || { cat "host-$id/log"; exit 1; }
done
python3 - $(($(sent 1) - before)) << 'EOF'
import json, sys
one = [n["train_loss"] for n in json.load(open("one/summary.json"))["per_worker"]]
for worker in range(3):
    own = json.load(open(f"host-{worker}/out/summary.json"))["per_worker"][worker]["train_loss"]
    assert own == one[worker], (worker, own, one[worker])
# The kernel also counts headers and acknowledgments.
counted = json.load(open("host-1/out/summary.json"))["bytes_sent"]
more = int(sys.argv[1]) / counted - 1
print(f"worker 1 counted {counted} bytes, the kernel counted {100 * more:.2f} % more")
assert abs(more) < 0.02, more
EOF
echo "peers on three hosts: same losses as one process"
cd /; rm -rf "$work"
