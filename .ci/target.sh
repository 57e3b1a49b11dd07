# Sourced by .ci/run. `share_target` makes `target` of a checkout a link to a folder outside it, so that a machine compiles
# dependencies once. The folder is ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/target/<hash of Cargo.lock, the profiles and rustc>.
# `return_target` ends that: `target` has the results of the run then, and the folder has dependencies and nothing else.
#
# A checkout in which something was compiled before keeps its own target folder.

most_folders=2 # one for the Cargo.lock of the main branch, one for that of a change
most_mb=12000  # in a folder, without the workspace: three times what a run leaves
results=(book book.png dist seconds chaos)
shared=''

# Removes all but compiled dependencies. The workspace is compiled anew in each checkout, because the times of files of two
# checkouts do not say which is newer.
keep_dependencies() { # folder
    local target clean=(cargo clean --quiet --locked --target-dir "$1" --workspace)
    "${clean[@]}" && "${clean[@]}" --release || return
    for target in "$1"/*-unknown-linux-musl; do
        [ ! -d "$target" ] || "${clean[@]}" --release --target "${target##*/}" || return
    done
    find "$1" -mindepth 1 -maxdepth 1 ! -name debug ! -name release ! -name '*-unknown-linux-musl' ! -name lock -exec rm -rf {} +
    (($(du -sm "$1" | cut -f 1) <= most_mb)) || find "$1" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
}

share_target() {
    local targets key folder old
    if [ ! -L target ] && [ -d target/debug ]; then return; fi
    rm -rf target
    targets=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/target
    key=$({ cat Cargo.lock; sed -n '/^\[profile/,$p' Cargo.toml; rustc --version --verbose; echo "${RUSTFLAGS:-}"; } | sha256sum)
    folder=$targets/${key:0:16}
    mkdir -p "$folder"
    exec {target_lock}> "$folder/lock" # until this shell ends
    if ! flock --nonblock "$target_lock"; then
        echo "ci: another checkout uses $folder: this one compiles all dependencies" >&2
        return
    fi
    if ! keep_dependencies "$folder"; then
        echo "ci: cargo cannot remove the workspace from $folder: this checkout compiles all dependencies" >&2
        return
    fi
    ln -s "$folder" target
    shared=$folder
    export CARGO_TARGET_DIR=$folder # the same path in each checkout
    touch "$folder"
    # The oldest ones, unless another checkout uses them.
    find "$targets" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -rn | tail -n +$((most_folders + 1)) | cut -d ' ' -f 2- |
        while IFS= read -r old; do flock --nonblock "$old/lock" rm -rf "$old" || true; done
}

return_target() {
    local name
    [ -n "$shared" ] || return 0
    rm target
    mkdir target
    for name in "${results[@]}"; do [ ! -e "$shared/$name" ] || mv "$shared/$name" target/; done
    keep_dependencies "$shared" || true
}
