#!/usr/bin/env bash
# Regenerates the tables in docs/reproduction.md from results/. UPWASH_REPRODUCE is the path of upwash-reproduce.
set -euo pipefail
reproduce=$(realpath "${UPWASH_REPRODUCE:?set UPWASH_REPRODUCE to the path of upwash-reproduce}")
cd "$(dirname "$0")/.."
document=docs/reproduction.md
fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
inside=
while IFS= read -r line; do
  if [[ $line =~ ^'<!-- reproduce '(.*)' -->'$ ]]; then
    printf '%s\n' "$line"
    # shellcheck disable=SC2086 # several arguments
    "$reproduce" ${BASH_REMATCH[1]} --show --out results | sed 's/^##/###/'
    inside=yes
  elif [[ $line == '<!-- end -->' ]]; then
    inside=
    printf '%s\n' "$line"
  elif [[ -z $inside ]]; then
    printf '%s\n' "$line"
  fi
done < "$document" > "$fresh"
cat "$fresh" > "$document"
