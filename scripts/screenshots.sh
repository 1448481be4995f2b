#!/usr/bin/env bash
# Regenerates the screenshots of pages in docs/images. UPWASH is the path of the program. Needs Chromium.
set -euo pipefail
upwash=$(realpath "${UPWASH:?set UPWASH to the path of the program}")
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
runs=results/cifar10-200-epochs
"$upwash" report $runs/dpsgd-released-13x1/seed-1 $runs/al-dsgd-dpsgd-sound-13x3/seed-1 -o "$place/report.html"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$place/profile" --window-size=1440,1400 \
  --virtual-time-budget=3000 --screenshot="$PWD/docs/images/report.png" "file://$place/report.html" 2> /dev/null
# The live page needs a run in progress, which this test drives.
PICTURE="$PWD/docs/images/watch.png" cargo test -p upwash-cli --test watch -- --ignored readme_screenshot
