#!/usr/bin/env bash
# Times rounds of eight ResNet-20 workers: Upwash, one Burn model with Burn's own threads, and PyTorch, in
# turn and five times. PYTHON is a Python interpreter with torch and numpy.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
bench() { cargo bench --quiet -p upwash-burn --bench rounds "$@"; }
# A separate target folder: switching features would rebuild Burn every time.
threads=(--features burn-threads --target-dir target/burn-threads)
bench --no-run
bench --no-run "${threads[@]}"
for _ in 1 2 3 4 5; do
  bench
  bench "${threads[@]}"
  "${PYTHON:-python3}" crates/upwash-burn/benches/peers/rounds.py
done
