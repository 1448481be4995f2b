#!/usr/bin/env bash
# Rounds of eight ResNet-20 workers: Upwash, one Burn model with Burn's own threads, and PyTorch, in
# turn and five times over. PYTHON names a Python with torch and numpy.
set -euo pipefail
cd "$(dirname "$0")/../../../.."
bench() { cargo bench --quiet -p upwash-burn --bench rounds "$@"; }
# A folder of its own: another set of features would build Burn anew every time.
threads=(--features burn-threads --target-dir target/burn-threads)
bench --no-run
bench --no-run "${threads[@]}"
for _ in 1 2 3 4 5; do
  bench
  bench "${threads[@]}"
  "${PYTHON:-python3}" crates/upwash-burn/benches/peers/rounds.py
done
