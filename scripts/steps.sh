# What `check` and `test` have in common: steps that are counted, whatever became of the others, and
# a summary. The last line is "N passed, N failed, N skipped" alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

target=${CARGO_TARGET_DIR:-target}
skips=$target/lab/skipped
logs=$(mktemp -d)
passed=0
failed=0
failures=()
# Of each run of tests beside the steps: its process group, its log and its name.
beside=()

finish() {
    local group
    for group in $(jobs -p); do
        kill -- "-$group" 2>/dev/null
    done
    rm -rf "$logs"
}
trap finish EXIT

note_failure() {
    failed=$((failed + $2))
    failures+=("$1")
}

# in_background LOG COMMAND...: starts a command as the head of a process group of its own, which
# ends with this script. $! is its number.
in_background() {
    local log=$1
    shift
    set -m
    "$@" </dev/null >"$log" 2>&1 &
    set +m
}

# check NAME COMMAND...: one check, passed if the command succeeds.
check() {
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    if "$@"; then
        passed=$((passed + 1))
        echo "== $name: $((SECONDS - start)) s"
    else
        note_failure "$name" 1
        return 1
    fi
}

# tests NAME COMMAND...: a run of `cargo test`, whose own results are counted. It prints the seconds
# of each test program.
tests() {
    run_tests "$@" 2>&1 | tee "$logs/tests"
    count "$1" "${PIPESTATUS[0]}" "$logs/tests"
}

# tests_beside NAME COMMAND...: the same, while the next steps go on. What it prints is shown, and
# its results are counted, by `join_tests`.
tests_beside() {
    local log
    log=$(mktemp -p "$logs")
    in_background "$log" run_tests "$@"
    beside+=("$! $log $1")
}

# join_tests [NAME]: waits for the run with this name, or for all.
join_tests() {
    local each process log name status others=()
    for each in "${beside[@]}"; do
        read -r process log name <<<"$each"
        if [ "${1-$name}" != "$name" ]; then
            others+=("$each")
            continue
        fi
        wait "$process"
        status=$?
        cat "$log"
        count "$name" "$status" "$log"
    done
    beside=("${others[@]}")
}

# pool WORKERS FUNCTION ARGUMENT...: calls FUNCTION with each argument in turn, at most WORKERS calls
# at a time, and prints what each has printed when it has ended. Fails if one of them does.
pool() {
    local workers=$1 function=$2 status=0 argument
    shift 2
    for argument; do
        if (($(jobs -pr | wc -l) >= workers)); then
            wait -n || status=1
        fi
        whole "$function" "$argument" &
    done
    while (($(jobs -p | wc -l))); do
        wait -n || status=1
    done
    return "$status"
}

# whole COMMAND...: runs a command, and prints its output in one piece, after its end.
whole() {
    local output status
    output=$(mktemp -p "$logs")
    "$@" >"$output" 2>&1
    status=$?
    flock "$logs" cat "$output"
    return "$status"
}

run_tests() {
    local name=$1 start=$SECONDS runner=$PWD/scripts/timed status
    shift
    echo "== $name"
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$runner \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner "$@"
    status=$?
    echo "== $name: $((SECONDS - start)) s"
    return "$status"
}

# count NAME STATUS LOG: counts what a run of `cargo test` has printed.
count() {
    local name=$1 status=$2 log=$3
    passed=$((passed + $(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log")))
    failed=$((failed + $(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$log")))
    # "test NAME ... ok <SECONDSs>"
    sed -n "s/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>\$/\2 \1 ($name)/p" "$log" >>"$logs/times"
    mapfile -t -O ${#failures[@]} failures < <(
        sed -n 's/^test \(.*\) \.\.\. FAILED\( <.*>\)\?$/\1/p' "$log"
    )
    # Nothing counted as failed, but not well either: it did not compile, or a test aborted.
    if [ "$status" -ne 0 ] && ! grep -q ' \.\.\. FAILED' "$log"; then
        note_failure "$name (exit status $status)" 1
    fi
}

# summary: the slowest tests, what was skipped, what failed. Fails if anything did.
summary() {
    local skipped=0
    echo
    echo "The ten slowest tests, in seconds:"
    sort -rn "$logs/times" | head -n 10 | sed 's/^/  /'
    # A test that skips itself returns normally, so that cargo counts it as passed.
    if [ -s "$skips" ]; then
        skipped=$(wc -l <"$skips")
        passed=$((passed - skipped))
        sed 's/^/SKIP: /' "$skips"
    fi
    for failure in "${failures[@]}"; do
        echo "FAIL: $failure"
    done
    echo "$SECONDS s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
