#!/bin/sh
# Puts each defect of this folder into the product, runs the simulation, and says whether it finds it.
# Run it in a clean tree, from its root.
for patch in crates/weft-stream/src/sim/mutations/*.patch; do
    git apply "$patch" || exit 1
    cargo test -p weft-stream --lib --no-run || exit 1
    if WEFT_SIM_SEEDS=${WEFT_SIM_SEEDS:-50000} cargo test -p weft-stream --lib sim::seeds -- --skip remote >/dev/null 2>&1
    then echo "$patch: NOT FOUND"
    else echo "$patch: found"
    fi
    git apply -R "$patch"
done
