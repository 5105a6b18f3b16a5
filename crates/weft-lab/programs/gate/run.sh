#!/bin/bash
# run.sh ROOT PROBES PROGRAM...: runs test programs of the package in PROBES as the gate of the tree at ROOT runs those of the lab,
# with its second look and its summary. The exit status is the gate's. CARGO_TARGET_DIR gets logs only.
# shellcheck source=scripts/steps.sh
source "$1/scripts/steps.sh"
# shellcheck source=scripts/second-look
source scripts/second-look
probes=$2
shift 2

lab() {
    local selector=--test=$1
    [ "$1" != unit ] || selector=--lib
    shift
    (cd "$probes" && unset CARGO_TARGET_DIR && cargo test --package weft-lab --no-fail-fast "$selector" -- "$@")
}
: >"$skips"
for program; do
    run_tests "lab $program" lab "$program" --test-threads=1
done
for program; do
    count "lab $program"
done
look_again
summary
exit "$(status)"
