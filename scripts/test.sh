#!/usr/bin/env bash
# Set everything up, check style and types, run the test suite in parallel. Before other arguments,
#
# --quick PACKAGE…  runs the quick tests of packages alone, within a minute each: neither set-up (if there
#              is an environment), nor style and types, nor the tests marked `slow` (tests/conftest.py):
#              those of a module that starts commands, and others that take long. PACKAGE is a folder
#              of tests/ or plugins/: ./scripts/test.sh --quick planning;
# --all        also runs the tests that are marked `thorough`: what others show more quickly, with
#              other numbers of hosts, trainers and partitions and more kinds of scripts; for releases;
# --newest     also runs the tests of what depends on releases of other packages with the newest of
#              everything and without DGL (with --all, all of the core's), and uses the wheels outside
#              the tree (smoke.sh);
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
unset PYTHONDONTWRITEBYTECODE  # else hundreds of processes compile the package anew
newest="" wheel="" discard="" minutes="" all="" chosen=()

quick() {  # PACKAGE… ARGUMENTS…
    local folders=() package
    for package in tests/*/ plugins/*/tests/; do
        compgen -G "${package}test_*.py" > /dev/null && folders+=("${package%/}")
    done
    local known=("${folders[@]#tests/}") found=()
    known=("${known[@]#plugins/}") && known=("${known[@]%/tests}")
    while [[ $# -gt 0 && "$1" != -* ]]; do
        package=""
        for at in "${!known[@]}"; do [[ "${known[$at]}" != "$1" ]] || package="${folders[$at]}"; done
        if [[ -z "$package" ]]; then
            echo "error: unknown package '$1'; packages with tests: ${known[*]}" >&2
            exit 2
        fi
        found+=("$package") && shift
    done
    if [[ ${#found[@]} == 0 ]]; then
        echo "error: --quick needs a package; packages with tests: ${known[*]}" >&2
        exit 2
    fi
    [[ -x "${VENV:-.venv}/bin/python" ]] || ./scripts/setup.sh
    exec "${VENV:-.venv}/bin/python" -m pytest -n "${PYTEST_WORKERS:-auto}" --dist worksteal \
        -m "not thorough and not slow" "${found[@]}" "$@"
}

while true; do
    case "${1:-}" in
        --quick) quick "${@:2}" ;;
        --all) all=yes chosen=(-m ""); shift ;;
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
    "$python" -m pytest "${cache[@]}" --cache-clear -n "$workers" --dist worksteal \
        "${chosen[@]}" "${@:2}" || status=$?
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

# With DGL 2.4.0: what stands on DGL's own names, each once; more ways to it with --all.
with_other_dgl=(
    tests/distdgl/test_versions.py
    tests/distdgl/test_distdgl.py
    tests/distdgl/test_distdgl_messages.py
    tests/distdgl/test_distdgl_hosts.py::test_two_hosts_compute_what_one_process_does
    tests/distdgl/test_links.py::test_a_script_computes_what_it_does_on_distdgl
    tests/distdgl/test_masked.py
    "tests/distdgl/test_wrappers.py::test_options_and_methods[2-1]"
    "tests/distdgl/test_multi_update.py::test_results_and_gradients_are_those_of_plain_dgl[2-1]"
    tests/distdgl/test_own_operations.py::test_every_public_name_of_a_block_is_refused_or_allowed
    tests/distdgl/test_prove.py::test_a_right_script_is_proved
    "plugins/graphstorm/tests/test_layers.py::test_graphstorms_layers_compute_what_plain_dgl_does[2-2]"
    tests/distdgl/test_partition_arguments.py
    tests/graphbolt
    tests/partition/test_partition_graph.py
)
[[ -z "$all" ]] || with_other_dgl+=(
    tests/distdgl/test_distdgl_docs.py
    tests/distdgl/test_links.py
    tests/distdgl/test_distdgl_cache.py
    plugins/graphstorm/tests/test_graphstorm.py::test_training_saves_a_model_that_plain_graphstorm_infers_the_same_with
)

# With the newest releases: quick tests, which are most of those of graphs, stores, features, kernels and
# models, and those marked `releases`. Launching and what plugins do on workers depends on no release.
newest_chosen=(-m "not thorough and (not slow or releases)" --ignore plugins/catgnn)
[[ -z "$all" ]] || newest_chosen=(-m "")

[[ -z "$discard" ]] || export NO_COMPILE=1
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
    run_tests "$latest" "${newest_chosen[@]}" --ignore tests/launch --ignore tests/scripts \
        --ignore-glob 'plugins/hifuse/tests/test_pipeline*' "$@"
    VENV="$latest" ./scripts/smoke.sh
    done_with "$latest"
fi

[[ -z "$again" ]] || printf 'Failed beside others, passed alone:\n%s' "$again"
[[ -z "$left" ]] || echo "Not tested, as $minutes minutes were over: $left"
