#!/usr/bin/env bash
# Fails on names that the code has left behind: metaphors for what has a name in the field, and British spelling.
set -euo pipefail
cd "$(dirname "$0")/.."
names='Letter|LetterError|Guest|Wish|Crew|Courier|Errand|Parcel|Occasion|Fleet|CudaFleet|Lane|Lanes|Shelf|Flight|Encounter'
names+='|Meeting|Desk|House|Promises|Participant|Seats|Pulse|Mail|OnCpu|OptionAbout|ExtraStart|be_met|take_stock|can_be_led'
names+='|takes_directed|has_centre|fill_in|is_asked|acquaintances|share_loss|statistics_images'
spelling='[Nn]eighbour|[Cc]olour|[Rr]elabelling'
found=$(git ls-files 'crates/*.rs' 'examples/*.rs' 'fuzz/*.rs' | xargs grep -nE "\b($names)\b|$spelling" || true)
if [[ -n $found ]]; then
  printf '%s\n' "$found" "These names are out of use: see CONTRIBUTING.md."
  exit 1
fi
