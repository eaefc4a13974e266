#!/usr/bin/env bash
# Set everything up, check style and types, run the test suite in parallel. Before other arguments,
#
# --all        also runs the tests that are marked `thorough`: what others show more quickly, with
#              other numbers of hosts, trainers and partitions and more kinds of scripts; for releases;
# --newest     also runs the core's tests with the newest releases of everything and without DGL, and
#              uses the wheels outside the tree (smoke.sh);
# --dgl WHEEL  also runs the tests that show the drop-in with DGL 2.4.0, from a wheel (setup.sh);
# --minutes N  begins no further environment after so many minutes, and says which was left out;
# --discard    removes each of these environments, 6 GB, when its tests have passed.
#
# Other arguments go to pytest, for example: ./scripts/test.sh -k store
#
# Tests of several processes can meet a bad moment on a busy machine. Where three tests or fewer fail,
# these run once more, one after the other; what fails then has failed, the rest is named at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
newest="" wheel="" discard="" minutes="" chosen=()
while true; do
    case "${1:-}" in
        --all) chosen=(-m ""); shift ;;
        --newest) newest=yes; shift ;;
        --discard) discard=yes; shift ;;
        --minutes) minutes="${2:-}"; shift 2 ;;
        --dgl) wheel="${2:-}"; shift $(($# > 1 ? 2 : 1)); wheel="${wheel:-(none)}" ;;
        *) break ;;
    esac
done
workers="${PYTEST_WORKERS:-auto}"
done_with() { [[ -z "$discard" ]] || rm -rf "$1"; }
run_tests() {  # ENVIRONMENT ARGUMENTS…
    local python="$1/bin/python" cache=(-o cache_dir="$PWD/$1/.pytest_cache") status=0
    [[ "$1" != /* ]] || cache=(-o cache_dir="$1/.pytest_cache")
    local failed="${cache[1]#cache_dir=}/v/cache/lastfailed"
    "$python" -m pytest "${cache[@]}" --cache-clear -n "$workers" --dist loadfile "${chosen[@]}" "${@:2}" || status=$?
    [[ $status == 1 && -f "$failed" && $(grep -c '": true' "$failed") -le 3 ]] || return $status
    local names && mapfile -t names < <(python3 -c "import json, sys
print(*json.load(open(sys.argv[1])), sep='\n')" "$failed")
    echo "Once more, alone:" && printf '%s\n' "${names[@]}"
    "$python" -m pytest "${cache[@]}" "${chosen[@]}" "${names[@]}"
    again+="$(printf '%s\n' "${names[@]}")"$'\n'
}
again="" left=""
time_for() {  # ENVIRONMENT
    [[ -z "$minutes" || $SECONDS -lt $((minutes * 60)) ]] || { left+="$1; "; return 1; }
}

# Switching on, partitions, loaders, messages, embeddings, DDP, GraphBolt's stores, proofs, GraphStorm:
# each on DGL's own names. What does not depend on them runs with DGL 2.1.0 alone.
with_other_dgl=(
    tests/distdgl/test_versions.py
    tests/distdgl/test_distdgl.py
    tests/distdgl/test_distdgl_docs.py
    tests/distdgl/test_distdgl_messages.py
    tests/distdgl/test_distdgl_hosts.py::test_two_hosts_compute_what_one_process_does
    tests/distdgl/test_links.py
    tests/distdgl/test_masked.py
    tests/distdgl/test_distdgl_cache.py
    "tests/distdgl/test_wrappers.py::test_options_and_methods[2-1]"
    "tests/distdgl/test_multi_update.py::test_results_and_gradients_are_those_of_plain_dgl[2-1]"
    tests/distdgl/test_own_operations.py::test_every_public_name_of_a_block_is_refused_or_allowed
    tests/distdgl/test_prove.py::test_a_right_script_is_proved
    "plugins/graphstorm/tests/test_layers.py::test_graphstorms_layers_compute_what_plain_dgl_does[2-2]"
    plugins/graphstorm/tests/test_graphstorm.py::test_training_saves_a_model_that_plain_graphstorm_infers_the_same_with
    tests/distdgl/test_partition_arguments.py
    tests/graphbolt
    tests/partition/test_partition_graph.py
)

./scripts/setup.sh
bin="${VENV:-.venv}/bin"
"$bin/ruff" check .
"$bin/mypy"
need="${HETA_TESTS_NEED:-}"
HETA_TESTS_NEED="dgl,graphstorm${need:+,$need}" run_tests "${VENV:-.venv}" "$@"
done_with "${VENV:-.venv}"

if [[ -n "$wheel" ]] && time_for "DGL 2.4.0"; then
    other="${VENV_DGL24:-.venv-dgl24}"
    VENV="$other" ./scripts/setup.sh --dgl "$wheel"
    HETA_TESTS_NEED="dgl,graphstorm${need:+,$need}" run_tests "$other" "${with_other_dgl[@]}" "$@"
    done_with "$other"
fi

if [[ -n "$newest" ]] && time_for "the newest releases"; then
    latest="${VENV_NEWEST:-.venv-newest}"
    VENV="$latest" ./scripts/setup.sh --newest
    # Launching, campaigns, benchmarks and what plugins do on several workers depend on no release of a
    # package: the first set has them.
    run_tests "$latest" --ignore tests/launch --ignore tests/scripts --ignore plugins/catgnn \
        --ignore-glob 'plugins/hifuse/tests/test_pipeline*' "$@"
    VENV="$latest" ./scripts/smoke.sh
    done_with "$latest"
fi

[[ -z "$again" ]] || printf 'Failed beside others, passed alone:\n%s' "$again"
[[ -z "$left" ]] || echo "Not tested, as $minutes minutes were over: $left"
