// What libtorch offers to C++ and torch-sys does not wrap. `shim.rs` is the other half.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <caffe2/utils/threadpool/thread_pool_guard.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/version.h>

namespace {

thread_local std::string last_error;

// Runs `compute` and hands its result over; null and `last_error` if it throws.
template <typename Compute>
auto guarded(Compute compute) -> decltype(compute())* {
    try {
        return new auto(compute());
    } catch (const c10::Error& error) {
        last_error = error.what_without_backtrace();
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return nullptr;
}

template <typename Signature>
auto find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

c10::OperatorHandle find_boxed(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// The weight of a linear layer as XNNPACK packs it, cut by outputs into one part for each thread.
//
// XNNPACK has threads of its own, which spin while they wait, as do OpenMP's, by which everything else here
// computes: two pools on one set of cores, each in the other's way (10 times slower at worst). Cut into parts,
// a product runs on OpenMP's threads alone.
struct XnnpackLinear {
    std::vector<c10::IValue> parts;
    int64_t outputs;
    int64_t part;

    XnnpackLinear(const at::Tensor& weight, const std::optional<at::Tensor>& bias) : outputs(weight.size(0)) {
        static const auto pack = find_boxed("prepacked::linear_clamp_prepack");
        // The tensors passed in are needed no longer than for the packing.
        at::globalContext().setReleaseWeightsWhenPrepacking(true);
        // Whole blocks of the kernels' outputs.
        const int64_t block = 32, threads = at::get_num_threads();
        part = (outputs + threads * block - 1) / (threads * block) * block;
        parts.resize((outputs + part - 1) / part);
        at::parallel_for(0, parts.size(), 1, [&](int64_t begin, int64_t end) {
            const c10::InferenceMode inference;
            for (auto index = begin; index < end; ++index) {
                const auto rows = [&](const at::Tensor& whole) {
                    return whole.narrow(0, index * part, std::min(part, outputs - index * part));
                };
                c10::IValue nothing;
                torch::jit::Stack stack{rows(weight), bias ? c10::IValue(rows(*bias)) : nothing, nothing, nothing};
                pack.callBoxed(stack);
                parts[index] = std::move(stack[0]);
            }
        });
    }

    at::Tensor multiply(const at::Tensor& input) const {
        static const auto run = find_boxed("prepacked::linear_clamp_run");
        auto output = at::empty({input.size(0), outputs}, input.options());
        at::parallel_for(0, parts.size(), 1, [&](int64_t begin, int64_t end) {
            const c10::InferenceMode inference;
            const caffe2::_NoPThreadPoolGuard no_threads_of_its_own;
            for (auto index = begin; index < end; ++index) {
                torch::jit::Stack stack{input, parts[index]};
                run.callBoxed(stack);
                const auto product = stack[0].toTensor();
                output.narrow(1, index * part, product.size(1)).copy_(product);
            }
        });
        return output;
    }
};

// A tracer records operators alone, so that the product is one. `linear` is the address of an `XnnpackLinear`.
at::Tensor xnnpack_linear(const at::Tensor& input, int64_t linear) {
    return reinterpret_cast<const XnnpackLinear*>(linear)->multiply(input);
}

TORCH_LIBRARY(engine_tch, library) {
    library.def("xnnpack_linear(Tensor input, int linear) -> Tensor");
    library.impl("xnnpack_linear", c10::DispatchKey::CPU, xnnpack_linear);
}

}  // namespace

extern "C" {

// The version whose headers this was compiled against.
const char* engine_tch_built_for() { return TORCH_VERSION; }

// The vector extensions that libtorch's own kernels were dispatched to.
const char* engine_tch_cpu_capability() {
    static const std::string capability = at::get_cpu_capability();
    return capability.c_str();
}

bool engine_tch_cpu_is_intel() {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

// Of the call on this thread that returned null last; valid until the next one does.
const char* engine_tch_last_error() { return last_error.c_str(); }

// `weight` in the blocked layout that oneDNN prefers, whatever the number of rows to multiply.
at::Tensor* engine_tch_onednn_pack(const at::Tensor* weight) {
    return guarded([&] {
        static const auto pack =
            find<at::Tensor(const at::Tensor&, std::optional<int64_t>)>("mkldnn::_reorder_linear_weight");
        return pack.call(*weight, std::nullopt);
    });
}

// input · weightᵀ + bias, where `weight` is packed and `bias` may be null.
at::Tensor* engine_tch_onednn_linear(const at::Tensor* input, const at::Tensor* weight, const at::Tensor* bias) {
    return guarded([&] {
        using Scalars = c10::List<std::optional<at::Scalar>>;
        static const auto linear =
            find<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, Scalars, std::optional<std::string_view>)>(
                "mkldnn::_linear_pointwise");
        static const Scalars none;
        return linear.call(*input, *weight, bias ? std::make_optional(*bias) : std::nullopt, "none", none, "");
    });
}

// Whether this libtorch holds XNNPACK, and this shim the threads to drive it by.
bool engine_tch_has_xnnpack() {
#if defined(_OPENMP)
    return c10::Dispatcher::singleton().findSchema({"prepacked::linear_clamp_run", ""}).has_value();
#else
    return false;
#endif
}

// `weight`, f32, as XNNPACK packs it for the number of threads now in effect; `bias` may be null.
XnnpackLinear* engine_tch_xnnpack_pack(const at::Tensor* weight, const at::Tensor* bias) {
    return guarded([&] { return XnnpackLinear(*weight, bias ? std::make_optional(*bias) : std::nullopt); });
}

void engine_tch_xnnpack_free(XnnpackLinear* linear) { delete linear; }

// input · weightᵀ + bias
at::Tensor* engine_tch_xnnpack_linear(const at::Tensor* input, const XnnpackLinear* linear) {
    return guarded([&] {
        static const auto multiply = find<at::Tensor(const at::Tensor&, int64_t)>("engine_tch::xnnpack_linear");
        return multiply.call(*input, reinterpret_cast<int64_t>(linear));
    });
}

// Inference mode on this thread until it is left; modes are left in the reverse order.
c10::InferenceMode* engine_tch_enter_inference_mode() { return new c10::InferenceMode(); }

void engine_tch_leave_inference_mode(c10::InferenceMode* mode) { delete mode; }

}  // extern "C"
