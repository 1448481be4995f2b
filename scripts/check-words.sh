#!/usr/bin/env bash
# Fails on names that the code has left behind: metaphors for what has a name in the field, and British spelling.
set -euo pipefail
cd "$(dirname "$0")/.."
names='Letter|LetterError|Guest|Wish|Crew|Courier|Errand|Parcel|Occasion|Fleet|CudaFleet|Lane|Lanes|Shelf|Flight|Encounter'
names+='|Meeting|Desk|House|Promises|Participant|Seats|Pulse|Mail|OnCpu|OptionAbout|ExtraStart|be_met|take_stock|can_be_led'
names+='|takes_directed|has_centre|fill_in|is_asked|acquaintances|share_loss|statistics_images|OwnParts|audience|ToCentre|FromCentre|neighbors_here'
spelling='[Nn]eighbour|[Cc]olour|[Rr]elabell|[Cc]entre|[Nn]ormalis|[Oo]ptimis|[Mm]inimis|[Ii]nitialis|[Rr]ecognis'
found=$(git ls-files 'crates/*.rs' 'examples/*.rs' 'fuzz/*.rs' | xargs grep -nE "\b($names)\b|$spelling" || true)
# The changelog names what things were called before.
found+=$(git ls-files '*.md' '*.py' '*.js' '*.cu' '*.cpp' 'scripts/*' | grep -vE '^(CHANGELOG.md|scripts/check-words.sh|results/)|echarts' |
  xargs grep -nE "$spelling" || true)
if [[ -n $found ]]; then
  printf '%s\n' "$found" "These names are out of use: see CONTRIBUTING.md."
  exit 1
fi
