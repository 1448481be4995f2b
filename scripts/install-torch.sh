#!/usr/bin/env bash
# Installs libtorch (torch 2.11.0 from PyPI, about 5 GB unpacked) into .torch/ and builds target/release/upwash and
# upwash-reproduce with the libtorch engine. Works with and without a GPU on the machine. With --fetch-only, nothing is
# built.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() { echo "error: $1" >&2; exit 1; }
command -v cargo > /dev/null || missing "cargo not found: install Rust"
command -v c++ > /dev/null || missing "no C++ compiler (c++) found: install g++"
command -v python3 > /dev/null || missing "python3 not found: install it with its venv module"
python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' ||
  missing "torch 2.11.0 supports Python 3.10 to 3.14, but python3 is $(python3 --version)"
[ "$(uname -sm)" = "Linux x86_64" ] || missing "this script supports only Linux on x86-64"

if [ ! -x .torch/bin/python ]; then
  python3 -m venv .torch || missing "python3 has no venv module: install it (Debian: python3-venv)"
fi
# The last package has CUDA headers that the dependencies of torch lack.
packages=(torch==2.11.0 numpy nvidia-cuda-crt==13.0.88)
# The download is several gigabytes, so the connection may break.
for try in 1 2 3; do
  .torch/bin/pip install --quiet --retries 10 --timeout 60 "${packages[@]}" && break
  [ "$try" -lt 3 ] || missing "pip could not install ${packages[*]}: see the errors above, and run this script again"
done

[ "${1:-}" != --fetch-only ] || exit 0
export LIBTORCH_USE_PYTORCH=1 PATH="$PWD/.torch/bin:$PATH"
cargo build --release -p upwash-cli -p upwash-paper --features upwash-cli/torch,upwash-paper/torch

if command -v nvidia-smi > /dev/null && nvidia-smi -L; then
  echo "built: target/release/upwash train CONFIG.toml --engine torch --device cuda:0"
else
  echo "built, but no NVIDIA GPU or driver was found (no working nvidia-smi): use --engine torch --device cpu"
fi
