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
    (cd "$probes" && unset CARGO_TARGET_DIR && cargo test --package weft-lab --no-fail-fast "$@")
}
: >"$skips"
for program; do
    if [ "$program" = unit ]; then
        run_tests "lab unit" lab --lib -- --test-threads=1
    else
        run_tests "lab $program" lab "--test=$program" -- --test-threads=1
    fi
done
for program; do
    count "lab $program"
done
look_again
summary
exit "$(status)"
