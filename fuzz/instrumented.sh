#!/bin/sh
# rustc for fuzz/run.sh, which calls it for the workspace's own crates alone: what `cargo fuzz` adds, without the
# sanitizers, which only a nightly compiler has. Overflow of an integer is a finding here and wraps in a release.
exec "$@" \
  -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares \
  -Cdebug-assertions=on \
  -Coverflow-checks=on
