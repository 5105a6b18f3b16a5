# The exit statuses of `scripts/test`, from which one sees what has failed. To be sourced at the root of the tree.

# The steps of `scripts/gate`, in the order of their numbers. New ones go to the end.
steps=(packages format clippy rfc tidy "supply chain" documentation "what tests fetch" exports
    "Debian packages" "installed packages")
first_step_code=10
first_program_code=100
last_program_code=249
not_compiled_code=250
deadline_code=251

# programs: all test programs, sorted: `PACKAGE NAME`, and `PACKAGE unit` for a package's unit tests.
programs() {
    {
        ls crates/*/tests/*.rs | sed 's|^crates/\(.*\)/tests/\(.*\)\.rs$|\1 \2|'
        ls crates/*/Cargo.toml | sed 's|^crates/\(.*\)/Cargo.toml$|\1 unit|'
        echo "xtask unit"
    } | LC_ALL=C sort
}

# code_of_step NAME
code_of_step() {
    local index
    for index in "${!steps[@]}"; do
        [ "${steps[index]}" != "$1" ] || echo $((first_step_code + index))
    done
}

# code_of_program PACKAGE NAME
code_of_program() {
    local line code
    line=$(programs | grep -nxF "$1 $2" | cut -d: -f1)
    code=$((first_program_code + ${line:-$last_program_code} - 1))
    echo $((code < last_program_code ? code : last_program_code))
}

print_codes() {
    local index line=0 program
    echo "0 nothing failed"
    for index in "${!steps[@]}"; do
        echo "$((first_step_code + index)) step: ${steps[index]}"
    done
    while read -r program; do
        echo "$((first_program_code + line)) test program: $program"
        line=$((line + 1))
    done < <(programs)
    echo "$not_compiled_code something did not compile"
    echo "$deadline_code the deadline passed"
}
