#!/bin/sh
# try.sh [NAME...]: takes fixes out of the sockets library, one patch of this folder at a time, and says which random program,
# or which one of the corpus, finds what that breaks. First it runs the same random programs on the library as it is: a
# difference there would be taken for a find. The patches are applied to a copy of the last commit in target/mutations; the tree
# stays as it is. WEFT_MUTATION_SECONDS (60) limits the random programs for each, WEFT_MUTATION_FIRST is the first one's seed.
set -eu
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
folder=crates/weft-lab/programs/differ/mutations
work=$PWD/target/mutations
copy=$work/tree
library=$work/build/release/libweft_sockets.so
seconds=${WEFT_MUTATION_SECONDS:-60}
first=${WEFT_MUTATION_FIRST:-1000000}
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

build() {
    CARGO_TARGET_DIR=$work/build RUSTFLAGS="${RUSTFLAGS:-} --cap-lints=allow" cargo build --quiet --release \
        --manifest-path "$copy/Cargo.toml" --package weft-sockets
}

differ() {
    target/debug/differ --library "$library" "$@"
}

mkdir -p "$work"
scripts/last-commit "$copy"
cargo build --quiet --package weft-lab --bin differ
[ $# -gt 0 ] || set -- "$folder"/*.patch

# Once for each commit, if it passes.
passes=$work/passes-$(git rev-parse HEAD)-$first-$seconds
build
if [ ! -e "$passes" ]; then
    if ! differ --without-known --first "$first" --seconds "$seconds" >"$work/none.txt" 2>&1; then
        echo "the library as it is differs: choose another WEFT_MUTATION_FIRST, or see $work/none.txt" >&2
        exit 1
    fi
    touch "$passes"
fi
missed=0
for patch; do
    name=$(basename "$patch" .patch)
    output=$work/$name.txt
    git -C "$copy" apply "$PWD/$folder/$name.patch"
    build
    corpus=$(sed -n 's/^Found by: //p' "$folder/$name.patch")
    if ! differ --without-known --first "$first" --seconds "$seconds" >"$output" 2>&1; then
        echo "$name: found by random programs: $(grep -m 1 seed "$output" || tail -n 1 "$output")"
    elif [ -n "$corpus" ] && ! differ --program "$folder/../corpus/$corpus" >"$output" 2>&1; then
        echo "$name: found by $corpus"
    else
        echo "$name: NOT FOUND"
        missed=$((missed + 1))
    fi
    git -C "$copy" apply -R "$PWD/$folder/$name.patch"
done
exit "$missed"
