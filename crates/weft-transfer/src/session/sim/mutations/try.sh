#!/bin/sh
# Puts each defect of this folder, or those that are named, into the product, runs the simulation, and says whether it finds it.
# Run it in a clean tree, from its root.
[ $# = 0 ] && set -- crates/weft-transfer/src/session/sim/mutations/*.patch
for patch in "$@"; do
    git apply "$patch" || exit 1
    cargo test -p weft-transfer --lib --no-run || exit 1
    if WEFT_SIM_SEEDS=${WEFT_SIM_SEEDS:-1000} cargo test -p weft-transfer --lib session::sim::seeds >/dev/null 2>&1
    then echo "$patch: NOT FOUND"
    else echo "$patch: found"
    fi
    git apply -R "$patch"
done
