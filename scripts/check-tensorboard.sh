#!/usr/bin/env bash
# Exports a run for TensorBoard and reads it with the tensorboard package (installed from PyPI into .tensorboard).
# UPWASH is the path of the program.
set -euo pipefail
upwash=$(realpath "${UPWASH:?set UPWASH to the path of the program}")
cd "$(dirname "$0")/.."
[[ -x .tensorboard/bin/python ]] || python3 -m venv .tensorboard
.tensorboard/bin/python -c 'import tensorboard' 2> /dev/null || .tensorboard/bin/pip install --quiet tensorboard
run=results/cifar10-200-epochs/matcha-sound-13x1/seed-1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$upwash" export "$run" --tensorboard "$place"
.tensorboard/bin/python - "$place/seed-1" "$run/summary.json" << 'EOF'
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

workers = json.load(open(sys.argv[2]))["per_worker"]
for worker in workers:
    read = EventAccumulator(f"{sys.argv[1]}/worker-{worker['id']}").Reload()
    losses, accuracies = read.Scalars("train/loss"), read.Scalars("test/accuracy")
    assert len(losses) == 200 and losses[-1].step == 200, losses
    assert abs(losses[-1].value - worker["train_loss"]) < 1e-6, (losses[-1], worker)
    assert abs(accuracies[-1].value - worker["test_accuracy"]) < 1e-6, (accuracies[-1], worker)
assert "all/gigabytes_sent" in EventAccumulator(f"{sys.argv[1]}/all").Reload().Tags()["scalars"]
print("TensorBoard reads the export: 8 workers, 200 epochs")
EOF
