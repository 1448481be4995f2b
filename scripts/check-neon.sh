#!/usr/bin/env bash
# Runs the tests of upwash-nn for 64-bit Arm (NEON) under qemu-user. On Debian it installs what it needs: a compiler
# that has the standard library of that architecture, a linker, and qemu.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
work=$PWD/${CARGO_TARGET_DIR:-target}/neon
sysroot=$work/sysroot/usr

packages=(rustc-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
dpkg -s "${packages[@]}" > /dev/null 2>&1 ||
  { apt-get update -q && apt-get install -y -q --no-install-recommends "${packages[@]}"; }
version=$(dpkg-query --show --showformat '${Version}' rustc-web)
if [ ! -e "$sysroot/$version" ]; then
  # Only unpacked: installed, it would bring the libraries of a whole second architecture.
  rm -rf "$work/sysroot" && mkdir -p "$sysroot"
  dpkg --print-foreign-architectures | grep -q arm64 || { dpkg --add-architecture arm64 && apt-get update -q; }
  (cd "$work" && apt-get download -q "libstd-rust-web-dev:arm64=$version")
  dpkg -x "$work"/libstd-rust-web-dev_*_arm64.deb "$work/sysroot"
  rm "$work"/libstd-rust-web-dev_*_arm64.deb
  touch "$sysroot/$version"
fi

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot $sysroot"
cargo test -p upwash-nn --lib --tests --target "$target" --target-dir "$work"
