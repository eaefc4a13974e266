#!/usr/bin/env bash
# Partition a real graph (the Debian package archive) and train R-GCN on it with RAF on two
# workers. Results go to runs/demo-TIME. Arguments go to `dgl-heta train`.
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/setup.sh
heta="${VENV:-.venv}/bin/dgl-heta"
run="runs/demo-$(date +%Y%m%d-%H%M%S)"

echo "1. Partition: meta-partitioning of the Debian archive for two workers"
"$heta" partition debian --out "$run/graph" --target package --parts 2
"$heta" plan "$run/graph" --target package --parts 2 --svg "$run/plan.svg"
echo
echo "2. Train: R-GCN, Relation-Aggregation-First on two workers"
"$heta" train "$run/graph" --model rgcn --parts 2 --run-dir "$run/train" \
    --set train.epochs=8 --set model.dropout=0.3 "$@"
