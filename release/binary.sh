#!/usr/bin/env bash
# Builds scpol as a static binary and prints its path.
#
#   binary.sh [amd64|arm64]      default: this machine's
#
# The same sources give the same bytes, in any folder: no path of this machine gets into the binary.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

machine=$(uname -m)
arch=${1:-$(sed 's/x86_64/amd64/; s/aarch64/arm64/' <<< "$machine")}
case $arch in
    amd64) cpu=x86_64 ;;
    arm64) cpu=aarch64 ;;
    *) echo "binary.sh: unknown architecture '$arch': amd64 or arm64" >&2; exit 2 ;;
esac
target=$cpu-unknown-linux-musl
variable=${target//-/_}

# ring has some C and assembler, which calls no C library: a compiler for the GNU one will do.
compilers=("$cpu-linux-musl-gcc" "$cpu-linux-gnu-gcc")
[ "$cpu" != "$machine" ] || compilers+=(gcc)
compiler=$(command -v "${compilers[@]}" | head -n 1 || true)
[ -n "$compiler" ] || { echo "binary.sh: there is no C compiler for $arch: install gcc-${cpu/_/-}-linux-gnu" >&2; exit 2; }
if command -v rustup > /dev/null && ! rustup target list --installed | grep -qx "$target"; then
    rustup --quiet target add "$target" >&2
fi

# Of the checkout cargo names only files that it has generated, in its target folder. A flag that named the checkout itself would have
# all dependencies compiled again in each.
cargo=${CARGO_HOME:-$HOME/.cargo} built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export "CC_$variable=$compiler" "CFLAGS_$variable=-ffile-prefix-map=$cargo=/cargo -ffile-prefix-map=$built=/build/target"
export "CARGO_TARGET_${variable^^}_RUSTFLAGS=--remap-path-prefix=$cargo=/cargo --remap-path-prefix=$built=/build/target"
[ "$cpu" = "$machine" ] || export "CARGO_TARGET_${variable^^}_LINKER=rust-lld"
# `scpol version` names it. Elsewhere than in a checkout nobody knows it.
export SCPOL_COMMIT=${SCPOL_COMMIT-$(git rev-parse --short=12 HEAD 2> /dev/null || true)}
cargo build --release --locked --bin scpol --target "$target" >&2
echo "${CARGO_TARGET_DIR:-target}/$target/release/scpol"
