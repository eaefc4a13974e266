#!/usr/bin/env bash
# Build wheels of dgl-heta and its plugins, install them in an environment of their own, and use
# them from another directory: entry points, data files, a training epoch.
# VENV is an environment with the packages that dgl-heta depends on; they are taken from there.
set -euo pipefail
cd "$(dirname "$0")/.."
venv="$(cd "${VENV:-.venv}" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH

# A copy, because what earlier builds left in build/ would come along.
mkdir "$work/tree"
cp -r pyproject.toml setup.py README.md LICENSE dgl_heta plugins "$work/tree"
find "$work/tree" -name __pycache__ -prune -exec rm -rf {} +  # of tests, in plugins/ as well
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$work/wheels" "$work/tree" "$work"/tree/plugins/*/

"$venv/bin/python" -m venv --without-pip "$work/venv"
"$venv/bin/python" -m pip --python "$work/venv/bin/python" install --quiet \
    --disable-pip-version-check --no-deps --no-index "$work"/wheels/*.whl
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site "$venv/bin/python" > "$(site "$work/venv/bin/python")/dependencies.pth"

mkdir "$work/elsewhere"
cd "$work/elsewhere"
python="$work/venv/bin/python" heta="$work/venv/bin/dgl-heta"
expect() {  # expect WORDS COMMAND...: the command succeeds and prints the words
    local words="$1" out; shift
    out="$("$@" 2>&1)" || { echo "$out"; echo "error: '$*' failed" >&2; exit 1; }
    grep -q -- "$words" <<< "$out" || { echo "$out"; echo "error: '$*' does not say '$words'" >&2; exit 1; }
}
expect "^$work/venv/" "$python" -c 'import dgl_heta; print(dgl_heta.__file__)'
expect "^no link" "$python" -c '
import re
from importlib.metadata import metadata
links = re.findall(r"\]\((?!https?://)[^)]*\)", metadata("dgl-heta")["Description"])
print(links or "no link to a file of the tree in the long description")'
expect "^partition backend *meta " "$heta" plugins
expect "meta-random *dgl-heta-random-assignment" "$heta" plugins
printf 'machines = 2\nlink_gbit = 1\n' > cluster.toml
expect "DistDGL" "$heta" plan debian --target package --cluster cluster.toml
expect "accuracy" "$heta" train debian --parts 2 --run-dir run --set train.epochs=1 \
    --set model.hidden=16 --set train.fanouts=5,5
test -s run/report.html
test -s run/model.safetensors
echo "The wheels work."
