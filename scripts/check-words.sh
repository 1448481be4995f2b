#!/usr/bin/env bash
# Fails on retired names (metaphors for concepts that have an established name) and on British spelling.
set -euo pipefail
cd "$(dirname "$0")/.."
names='Letter|LetterError|Guest|Wish|Crew|Courier|Errand|Parcel|Occasion|Fleet|CudaFleet|Lane|Lanes|Shelf|Flight|Encounter'
names+='|Meeting|Desk|House|Promises|Participant|Seats|Pulse|Mail|OnCpu|OptionAbout|ExtraStart|be_met|take_stock|can_be_led'
names+='|Course|Heard|Moment|Told|Sheet|Lent|STRANGERS|BEHIND|KEPT|correspondence|mended|arcs'
keys='patience_[a-z_]+|silence_[a-z_]+|gather_seconds'
names+='|takes_directed|has_centre|fill_in|is_asked|acquaintances|share_loss|statistics_images|OwnParts|audience|ToCentre|FromCentre|neighbors_here'
# Words that a comment may begin with are retired as names of types only.
types='Team|Home|Shares|Turn|Pull|Extra|Ground|Trial|Setting|Owner|Folders|News|Numbers|Board|Place|Field|Open'
spelling='[Tt]owards|[Nn]eighbour|[Cc]olour|[Rr]elabell|[Cc]entre|[Nn]ormalis|[Oo]ptimis|[Mm]inimis|[Ii]nitialis|[Rr]ecognis'
found=$(git ls-files 'crates/*.rs' 'examples/*.rs' 'fuzz/*.rs' |
  xargs grep -nE "\b($names|$keys)\b|\b(struct|enum|trait|type|mod) ($types)\b|$spelling" || true)
# The changelog quotes old names.
found+=$'\n'$(git ls-files '*.md' '*.toml' '*.py' '*.js' '*.cu' '*.cpp' 'scripts/*' | grep -vE '^(CHANGELOG.md|scripts/check-words.sh|results/)|echarts' |
  xargs grep -nE "\b($keys)\b|$spelling" || true)
if [[ -n ${found//$'\n'/} ]]; then
  printf '%s\n' "${found#$'\n'}" "error: retired names or British spelling; see CONTRIBUTING.md for the vocabulary"
  exit 1
fi
