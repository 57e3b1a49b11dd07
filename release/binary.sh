#!/usr/bin/env bash
# Builds scpol and prints its path. For linux the binary is static.
#
#   binary.sh [[linux|darwin|windows/]amd64|arm64]      default: this machine's
#
# Linux builds for linux and windows/amd64; a Mac builds for darwin, which needs Apple's SDK.
# The same sources give the same bytes, in any folder: no path of this machine gets into the binary.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

system=$(uname -s) machine=$(uname -m | sed 's/^arm64$/aarch64/')
platform=${1:-$(sed 's/x86_64/amd64/; s/aarch64/arm64/' <<< "$machine")}
[[ $platform == */* ]] || platform=linux/$platform
case $platform in
    */amd64) cpu=x86_64 ;;
    */arm64) cpu=aarch64 ;;
esac
file=scpol compilers=() package=''
case $platform in
    linux/amd64 | linux/arm64)
        target=$cpu-unknown-linux-musl
        # ring has some C and assembler, which calls no C library: a compiler for the GNU one will do.
        compilers=("$cpu-linux-musl-gcc" "$cpu-linux-gnu-gcc")
        [ "$cpu" != "$machine" ] || [ "$system" != Linux ] || compilers+=(gcc)
        package="gcc-${cpu/_/-}-linux-gnu and libc6-dev-${platform#*/}-cross"
        ;;
    windows/amd64) target=$cpu-pc-windows-gnu file=scpol.exe compilers=("$cpu-w64-mingw32-gcc") package=gcc-mingw-w64-x86-64 ;;
    darwin/amd64 | darwin/arm64) target=$cpu-apple-darwin compilers=(clang) ;;
    *) echo "binary.sh: unknown platform '$platform': linux/amd64, linux/arm64, windows/amd64, darwin/amd64 or darwin/arm64" >&2; exit 2 ;;
esac
[ "${platform%/*}" != darwin ] || [ "$system" = Darwin ] || { echo "binary.sh: $platform is built on a Mac" >&2; exit 2; }
variable=${target//-/_}
upper=$(tr a-z A-Z <<< "$variable")

compiler=$(command -v "${compilers[@]}" | head -n 1 || true)
[ -n "$compiler" ] || { echo "binary.sh: there is no C compiler for $platform: install ${package:-${compilers[0]}}" >&2; exit 2; }
if command -v rustup > /dev/null && ! rustup target list --installed | grep -qx "$target"; then
    rustup --quiet target add "$target" >&2
fi

# Of the checkout cargo names only files that it has generated, in its target folder. A flag that named the checkout itself would have
# all dependencies compiled again in each.
cargo=${CARGO_HOME:-$HOME/.cargo} built=${CARGO_TARGET_DIR:-target}
built=$(mkdir -p "$built" && cd "$built" && pwd -P)
export "CC_$variable=$compiler" "CFLAGS_$variable=-ffile-prefix-map=$cargo=/cargo -ffile-prefix-map=$built=/build/target"
export "CARGO_TARGET_${upper}_RUSTFLAGS=--remap-path-prefix=$cargo=/cargo --remap-path-prefix=$built=/build/target"
[[ $platform != linux/* || "$system $cpu" == "Linux $machine" ]] || export "CARGO_TARGET_${upper}_LINKER=rust-lld"
# `scpol version` names it. Elsewhere than in a checkout nobody knows it.
if [ -z "${SCPOL_COMMIT+given}" ] && [ -e .git ]; then SCPOL_COMMIT=$(git rev-parse --short=12 HEAD); fi
export SCPOL_COMMIT=${SCPOL_COMMIT-}
cargo build --release --locked --bin scpol --target "$target" >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release/$file"
