#!/usr/bin/env bash
# Test dgl-heta on a machine with a GPU, with PyTorch and no package index, and measure it there:
#
#   ./scripts/gpu.sh --out results --wheels wheels
#
# --dry-run says what would run, how long, and what the machine lacks; --help has all options. PYTHON
# is the interpreter that has PyTorch. docs/gpu.md says what to bring and how to read what comes out.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/gpu.py" "$@"
