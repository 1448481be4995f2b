#!/usr/bin/env bash
# Feeds a peer's decoder with bytes that look for new paths through it: fuzz.sh SECONDS. What is found is kept in
# fuzz/corpus; an input that breaks it in fuzz/artifacts. Needs a C++ compiler, and no nightly Rust.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
# Counters on every branch: what cargo-fuzz sets, less the sanitizers, which only nightly has.
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# The host's triple is named so that build scripts are built without all that.
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --target "$target" --target-dir target --quiet
mkdir -p corpus artifacts
exec "target/$target/release/peer" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=10 \
  -artifact_prefix=artifacts/ -print_final_stats=1 corpus
