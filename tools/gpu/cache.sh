#!/bin/sh
# Does ONNX Runtime's attention on a GPU read positions of its KV cache that are not filled? Each of its kernels computes
# over a cache of zeros and one of NaN (docs/evidence/gpu-status.md). Five minutes on a card; prints one line a shape.
#   ORT_DYLIB_PATH=…/libonnxruntime.so LD_LIBRARY_PATH=NVIDIA's libraries tools/gpu/cache.sh TEST_PROGRAM
# TEST_PROGRAM is what `cargo test --release -p engine-ort --lib --no-run` names.
test -x "$1" || { echo "error: $0 wants the test program of engine-ort" >&2; exit 2; }
worst=0
for kernel in flash memory-efficient unfused; do
    flash=1 efficient=1
    case $kernel in
        flash) flash=0 efficient=0 ;;
        memory-efficient) efficient=0 ;;
    esac
    echo "== $kernel"
    ORT_DISABLE_FLASH_ATTENTION=$flash ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION=$efficient \
        "$1" --ignored --nocapture --exact tests::a_cache_of_zeros_gives_finite_logits_on_a_gpu ||
        worst=1
done
exit $worst
