#!/usr/bin/env bash
# Checks the GPU engine on the GPU of this machine and measures its speed beside PyTorch. Fails on a mismatch.
# GPU is the path of the built benchmark (cargo build --release -p upwash-torch --features libtorch --benches).
# PYTHON is a Python interpreter with torch.
set -euo pipefail
gpu=${GPU:?set GPU to the path of the built benchmark, target/release/deps/gpu-...}
python=${PYTHON:-python3}
peer=$(dirname "$0")/../crates/upwash-torch/benches/peers/fleet.py
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$gpu" check
"$gpu" liars
"$gpu" scores
"$gpu" export "$scratch"
"$python" "$peer" agree "$scratch"
"$gpu" memory
"$gpu" speed
"$python" "$peer" speed
