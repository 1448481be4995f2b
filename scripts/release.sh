#!/usr/bin/env bash
# Usage: release.sh [TARGET]. Builds the program for machines without a compiler: dist/upwash-VERSION-TARGET.tar.gz with
# the program, its manual pages, completions and licenses, and a checksum. TARGET is by default the target of this
# machine; for another one, run `rustup target add TARGET` first.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
target=${1:-$host}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=upwash-$version-$target

cargo build --release --locked -p upwash-cli --target "$target"
built=${CARGO_TARGET_DIR:-target}/$target/release/upwash
rm -rf "dist/$name"
mkdir -p "dist/$name/man" "dist/$name/completions"
cp "$built" README.md CHANGELOG.md LICENSE LICENSE-MIT LICENSE-APACHE "dist/$name/"
strip "dist/$name/upwash" 2> /dev/null || true # strip may not know the format of another target
if [ "$target" = "$host" ]; then
  "dist/$name/upwash" man "dist/$name/man" > /dev/null
  for shell in bash fish; do "dist/$name/upwash" completions "$shell" > "dist/$name/completions/upwash.$shell"; done
  "dist/$name/upwash" completions zsh > "dist/$name/completions/_upwash" # the name under which zsh finds it
fi
tar -C dist -czf "dist/$name.tar.gz" "$name"
(cd dist && { sha256sum "$name.tar.gz" || shasum -a 256 "$name.tar.gz"; } > "$name.tar.gz.sha256")
ls -l "dist/$name.tar.gz"

# The archive works where nothing else is installed: without a PATH there is no compiler, no Cargo and no shell.
if [ "$target" = "$host" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  tar -C "$scratch" -xzf "dist/$name.tar.gz"
  (cd "$scratch/$name" && env -i ./upwash --version && env -i ./upwash demo --quiet > demo.txt && tail -3 demo.txt)
  if command -v objdump > /dev/null; then
    needs=$(objdump -T "$built" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
    echo "needs ${needs:-no glibc} or newer"
  fi
fi
