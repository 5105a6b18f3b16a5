# What the scripts that test have in common: steps that are counted, whatever became of the others, and a summary. The last line is
# "N passed, N failed, N skipped" alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
# shellcheck source=scripts/codes.sh
source scripts/codes.sh

target=${CARGO_TARGET_DIR:-target}
lab=$target/lab
# The output of each step and of each run of test programs.
logs=$lab/logs
skips=$lab/skipped
# The steps and the test programs that failed, in this order; which decide the exit status.
failed_steps=()
failed_programs=()
has_not_compiled=
passed=0
failed=0
failures=()
flaky=()
# Of each run of tests beside the steps: its process and its name.
beside=()
mkdir -p "$logs"
rm -f "$logs"/*

finish() {
    local group
    for group in $(jobs -p); do
        kill -- "-$group" 2>/dev/null
    done
}
trap finish EXIT

# in_background LOG COMMAND...: starts a command as the head of a process group of its own, which ends with this script. $! is its
# number.
in_background() {
    local log=$1
    shift
    set -m
    "$@" </dev/null >"$log" 2>&1 &
    set +m
}

# fixed_inputs: forgets what makes tests take other seeds, or more of them.
fixed_inputs() {
    unset WEFT_FUZZ_SECONDS WEFT_FUZZ_SEED WEFT_SIM_SEEDS WEFT_SIM_SEED WEFT_COPIES_KILLS WEFT_COPIES_SEED \
        WEFT_LAB_SEED PROPTEST_CASES PROPTEST_RNG_SEED LOOM_MAX_PREEMPTIONS
}

# own_networks: has each test program run in a network namespace of its own, where that is allowed.
own_networks() {
    if unshare --net -- ip link set lo up 2>/dev/null; then
        export WEFT_LAB_ALONE=1
    fi
}

# begin NAME: notes which step it is.
begin() {
    echo "== $1"
    echo "$1" >"$lab/step"
}

# ended NAME SECONDS: notes the seconds of a step or of a run of tests, for the summary.
ended() {
    echo "== $1: $2 s"
    echo "$2 $1" >>"$logs/seconds"
}

# check NAME COMMAND...: one check, passed if the command succeeds.
check() {
    local name=$1 start=$SECONDS
    shift
    begin "$name"
    if "$@"; then
        passed=$((passed + 1))
        ended "$name" $((SECONDS - start))
    else
        failed=$((failed + 1))
        failures+=("$name")
        failed_steps+=("$name")
        ended "$name" $((SECONDS - start))
        return 1
    fi
}

# compiles NAME COMMAND...: a check that something compiles.
compiles() {
    check "$@" && return
    has_not_compiled=yes
    return 1
}

# tests NAME COMMAND...: a run of `cargo test`, whose results are counted. Its whole output is in the logs; what is shown is its
# failures, and one line for each test program.
tests() {
    begin "$1"
    run_tests "$@"
    count "$1"
}

# tests_beside NAME COMMAND...: the same, while the next steps go on. Its results are shown and counted by `join_tests`.
tests_beside() {
    begin "$1, beside what follows"
    in_background /dev/null run_tests "$@"
    beside+=("$! $1")
}

# join_tests [NAME]: waits for the run with this name, or for all.
join_tests() {
    local each process name others=()
    for each in "${beside[@]}"; do
        read -r process name <<<"$each"
        if [ "${1-$name}" = "$name" ]; then
            begin "$name"
            wait "$process"
            count "$name"
        else
            others+=("$each")
        fi
    done
    beside=("${others[@]}")
}

# log_of NAME: where the output of a run goes.
log_of() {
    echo "$logs/${1//[ \/]/-}"
}

run_tests() {
    local name=$1 start=$SECONDS runner=$PWD/scripts/timed log status
    log=$(log_of "$name")
    shift
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$runner \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$runner "$@" >"$log.log" 2>&1
    status=$?
    echo "$status" >"$log.status"
    echo $((SECONDS - start)) >"$log.seconds"
    return "$status"
}

# count NAME: counts and shows what a run of `cargo test` has printed.
count() {
    local name=$1 log status
    log=$(log_of "$name")
    status=$(cat "$log.status" 2>/dev/null || echo 1)
    passed=$((passed + $(awk '/^test result:/ { n += $4 } END { print n + 0 }' "$log.log")))
    failed=$((failed + $(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$log.log")))
    # "test NAME ... ok <SECONDSs>"
    sed -n "s|^test \(.*\) \.\.\. .*<\([0-9.]*\)s>\$|\2 \1 ($name)|p" "$log.log" >>"$logs/times"
    mapfile -t -O ${#failures[@]} failures < <(
        sed -n "s|^test \(.*\) \.\.\. FAILED\( <.*>\)\?\$|\1 ($name)|p" "$log.log"
    )
    if [ "$status" -ne 0 ]; then
        cat "$log.log"
        note_programs "$log.log"
        # Nothing counted as failed, but not well either: it did not compile, or a test aborted.
        if ! grep -q ' \.\.\. FAILED' "$log.log"; then
            failed=$((failed + 1))
            failures+=("$name (exit status $status)")
            ! grep -q '^error: could not compile' "$log.log" || has_not_compiled=yes
        fi
    else
        grep '^time: ' "$log.log"
        grep '^SKIP: ' "$log.log"
    fi
    ended "$name" "$(cat "$log.seconds" 2>/dev/null || echo 0)"
}

# note_programs LOG: notes the test programs that cargo says to run again: `-p PACKAGE --test NAME`, `-p PACKAGE --lib`.
note_programs() {
    mapfile -t -O ${#failed_programs[@]} failed_programs < <(
        grep -o '`-p [^`]*`' "$1" | tr -d '`' | sort -u |
            sed 's/^-p \([^ ]*\) --test /\1 /; s/^-p \([^ ]*\) --.*/\1 unit/'
    )
}

# summary: how long the steps and the slowest tests took, what was skipped, what passed when it was run again, what failed. Fails if
# anything did.
summary() {
    local skipped=0
    echo
    echo "Seconds by step (some run beside others):"
    sed 's/^/  /' "$logs/seconds"
    echo "The ten slowest tests, in seconds:"
    sort -rn "$logs/times" 2>/dev/null | head -n 10 | sed 's/^/  /'
    # A test that skips itself returns normally, so that cargo counts it as passed.
    if [ -s "$skips" ]; then
        sort -u -o "$skips" "$skips"
        skipped=$(wc -l <"$skips")
        passed=$((passed - skipped))
        sed 's/^/SKIP: /' "$skips"
    fi
    echo "$SECONDS s"
    for each in "${flaky[@]}"; do
        echo "FLAKY: $each"
    done
    for each in "${failures[@]}"; do
        echo "FAIL: $each"
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

# status: prints the exit status that names what failed first.
status() {
    if [ "$failed" -eq 0 ]; then
        echo 0
    elif [ -n "$has_not_compiled" ]; then
        echo "$not_compiled_code"
    elif [ ${#failed_steps[@]} -gt 0 ]; then
        code_of_step "${failed_steps[0]}"
    elif [ ${#failed_programs[@]} -gt 0 ]; then
        # shellcheck disable=SC2086 # Two words.
        code_of_program ${failed_programs[0]}
    else
        echo "$last_program_code"
    fi
}
