#!/usr/bin/env bash
# Fails on retired names (metaphors for concepts that have an established name) and on British spelling.
set -euo pipefail
cd "$(dirname "$0")/.."
names='Letter|LetterError|Guest|Wish|Crew|Courier|Errand|Parcel|Occasion|Fleet|CudaFleet|Lane|Lanes|Shelf|Flight|Encounter'
names+='|Meeting|Desk|House|Promises|Participant|Seats|Pulse|Mail|OnCpu|OptionAbout|ExtraStart|be_met|take_stock|can_be_led'
names+='|takes_directed|has_centre|fill_in|is_asked|acquaintances|share_loss|statistics_images|OwnParts|audience|ToCentre|FromCentre|neighbors_here'
spelling='[Tt]owards|[Nn]eighbour|[Cc]olour|[Rr]elabell|[Cc]entre|[Nn]ormalis|[Oo]ptimis|[Mm]inimis|[Ii]nitialis|[Rr]ecognis'
found=$(git ls-files 'crates/*.rs' 'examples/*.rs' 'fuzz/*.rs' | xargs grep -nE "\b($names)\b|$spelling" || true)
# The changelog quotes old names.
found+=$(git ls-files '*.md' '*.py' '*.js' '*.cu' '*.cpp' 'scripts/*' | grep -vE '^(CHANGELOG.md|scripts/check-words.sh|results/)|echarts' |
  xargs grep -nE "$spelling" || true)
if [[ -n $found ]]; then
  printf '%s\n' "$found" "error: retired names or British spelling; see CONTRIBUTING.md for the vocabulary"
  exit 1
fi
