#!/usr/bin/env bash
# Usage: fuzz.sh SECONDS. Fuzzes the decoder of a peer, guided by coverage. Inputs that reach new code are kept in
# fuzz/corpus, inputs that crash it in fuzz/artifacts. Needs a C++ compiler, but not nightly Rust.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
# Coverage counters on every branch: the flags of cargo-fuzz without the sanitizers, which need nightly Rust.
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With an explicit target, these flags do not apply to build scripts.
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --target "$target" --target-dir target --quiet
mkdir -p corpus artifacts
exec "target/$target/release/peer" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=10 \
  -artifact_prefix=artifacts/ -print_final_stats=1 corpus
