#!/bin/sh
# fuzz/run.sh TARGET [ARGUMENT OF LIBFUZZER]...: runs a target under libFuzzer with a stable compiler, which cargo-fuzz
# cannot. New inputs and findings come into target/fuzz/TARGET.
set -eu
cd "$(dirname "$0")/.."
target=$1
shift
place="$PWD/target/fuzz/$target"
mkdir -p "$place/corpus" "$place/findings"
RUSTC_WORKSPACE_WRAPPER="$PWD/fuzz/instrumented.sh" CARGO_TARGET_DIR="$PWD/target/guided" \
  cargo build --release --locked --manifest-path fuzz/Cargo.toml --bin guided --features guided
PHOTOFINISH_FUZZ_TARGET="$target" exec target/guided/release/guided "$place/corpus" "fuzz/corpus/$target" \
  -artifact_prefix="$place/findings/" -timeout=10 -print_final_stats=1 "$@"
