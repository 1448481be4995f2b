#!/usr/bin/env bash
# Checks that a project outside this workspace can use the library with the native and the libtorch engine, without a
# [patch] section.
# Needs libtorch in .torch (scripts/install-torch.sh --fetch-only).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
project=$(mktemp -d)
trap 'rm -rf "$project"' EXIT
mkdir "$project/src"
cat > "$project/Cargo.toml" << EOF
[package]
name = "outside"
version = "0.1.0"
edition = "2024"

[dependencies]
upwash = { path = "$root/crates/upwash" }
upwash-torch = { path = "$root/crates/upwash-torch", features = ["libtorch"] }

# As in the workspace, so that what is built there is used again.
[profile.dev]
opt-level = 1
debug = "line-tables-only"

[profile.dev.package."*"]
opt-level = 2
debug = false
EOF
cp "$root/Cargo.lock" "$project/"
cat > "$project/src/main.rs" << 'EOF'
use upwash::{Config, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("training.epochs = 1", &[])?;
    let native = Trainer::new(config.clone()).run()?;
    let torch = Trainer::new(config).engine(upwash_torch::cpu_engine).run()?;
    assert!((native.mean_accuracy - torch.mean_accuracy).abs() < 0.02);
    println!("{} workers, {:.2}", torch.workers, torch.mean_accuracy);
    Ok(())
}
EOF
export LIBTORCH_USE_PYTORCH=1 PATH="$root/.torch/bin:$PATH"
LD_LIBRARY_PATH=$(python3 -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
export LD_LIBRARY_PATH
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
cd "$project"
cargo run --quiet | grep '^8 workers'
