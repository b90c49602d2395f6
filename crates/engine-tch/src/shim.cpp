// Parts of libtorch's C++ interface that torch-sys does not wrap. `shim.rs` has the Rust side.

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <caffe2/utils/threadpool/thread_pool_guard.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/version.h>

#include "shim.h"

namespace {

using engine_tch::Linear, engine_tch::done, engine_tch::guarded, engine_tch::last_error;
using LinearPointer = c10::intrusive_ptr<Linear>;

template <typename Signature>
auto find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

c10::OperatorHandle find_boxed(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

std::optional<at::Tensor> optional(const at::Tensor* tensor) {
    return tensor ? std::make_optional(*tensor) : std::nullopt;
}

// The weight, `[out, in]`, in place.
struct PlainLinear : Linear {
    at::Tensor weight;
    std::optional<at::Tensor> bias;

    PlainLinear(at::Tensor weight, std::optional<at::Tensor> bias)
        : weight(std::move(weight)), bias(std::move(bias)) {}

    at::Tensor multiply(const at::Tensor& input) const override { return at::linear(input, weight, bias); }
};

// While it lives, products do not use oneDNN (`torch.backends.mkldnn.enabled`, a setting of the process).
struct WithoutOnednn {
    const bool was = at::globalContext().userEnabledMkldnn();

    WithoutOnednn() { at::globalContext().setUserEnabledMkldnn(false); }
    ~WithoutOnednn() { at::globalContext().setUserEnabledMkldnn(was); }
};

// The weight in oneDNN's preferred blocked layout, for any number of rows. The product includes an
// activation, by the operator's names for it.
struct OnednnLinear : Linear {
    at::Tensor weight;
    std::optional<at::Tensor> bias;
    std::string activation;
    std::string algorithm;

    OnednnLinear(const at::Tensor& unpacked, std::optional<at::Tensor> bias, std::string activation,
                 std::string algorithm)
        : bias(std::move(bias)), activation(std::move(activation)), algorithm(std::move(algorithm)) {
        static const auto pack =
            find<at::Tensor(const at::Tensor&, std::optional<int64_t>)>("mkldnn::_reorder_linear_weight");
        weight = pack.call(unpacked, std::nullopt);
    }

    at::Tensor multiply(const at::Tensor& input) const override {
        using Scalars = c10::List<std::optional<at::Scalar>>;
        static const auto linear =
            find<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, Scalars, std::optional<std::string_view>)>(
                "mkldnn::_linear_pointwise");
        static const Scalars none;
        return linear.call(input, weight, bias, activation, none, algorithm);
    }
};

// The weight, f32, packed by XNNPACK. Its outputs are divided into one part for each of the current threads.
//
// XNNPACK has its own threads. They spin while they wait, and so do OpenMP's threads, which compute
// everything else here: the two pools compete for the same cores (10 times slower at worst). Divided into
// parts, a product runs on OpenMP's threads only.
struct XnnpackLinear : Linear {
    std::vector<c10::IValue> parts;
    int64_t outputs;
    int64_t part;
    const int64_t threads = at::get_num_threads();

    XnnpackLinear(const at::Tensor& weight, const std::optional<at::Tensor>& bias) : outputs(weight.size(0)) {
        static const auto pack = find_boxed("prepacked::linear_clamp_prepack");
        // The tensors passed in are needed only for packing.
        at::globalContext().setReleaseWeightsWhenPrepacking(true);
        // Whole blocks of the kernels' outputs.
        const int64_t block = 32;
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

    at::Tensor multiply(const at::Tensor& input) const override {
        static const auto run = find_boxed("prepacked::linear_clamp_run");
        TORCH_CHECK(at::get_num_threads() == threads, "a weight packed for ", threads, " threads is multiplied on ",
                    at::get_num_threads(), ": set the number of threads before the model is loaded");
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

TORCH_LIBRARY(engine_tch, library) {
    library.class_<Linear>("Linear").def("multiply", &Linear::multiply);
}

}  // namespace

extern "C" {

// The version of the headers that this was compiled with.
const char* engine_tch_built_for() { return TORCH_VERSION; }

// The vector extensions that libtorch's own kernels use. Null if it throws.
const char* engine_tch_cpu_capability() {
    const char* told = nullptr;
    done([&] {
        static const std::string capability = at::get_cpu_capability();
        told = capability.c_str();
    });
    return told;
}

bool engine_tch_cpu_is_intel() {
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

// The error of the last call on this thread that returned null or false; valid until the next such call.
const char* engine_tch_last_error() { return last_error.c_str(); }

// Whether this libtorch includes XNNPACK, and this shim the OpenMP threads for it.
bool engine_tch_has_xnnpack() {
#if defined(_OPENMP)
    return done([] { find_boxed("prepacked::linear_clamp_run"); });
#else
    return false;
#endif
}

bool engine_tch_attend_without_cudnn() {
    return done([] { at::globalContext().setSDPUseCuDNN(false); });
}

// Bytes allocated from the allocator of GPU `index`: current and peak. False if there is no such allocator.
bool engine_tch_allocated(int64_t index, int64_t* in_use, int64_t* peak) {
    return done([&] {
        const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)
                               ->getDeviceStats(static_cast<c10::DeviceIndex>(index));
        const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        *in_use = stats.allocated_bytes[all].current;
        *peak = stats.allocated_bytes[all].peak;
    });
}

// `bias` may be null.
LinearPointer* engine_tch_linear_plain(const at::Tensor* weight, const at::Tensor* bias) {
    return guarded([&]() -> LinearPointer { return c10::make_intrusive<PlainLinear>(*weight, optional(bias)); });
}

LinearPointer* engine_tch_linear_onednn(const at::Tensor* weight, const at::Tensor* bias, const char* activation,
                                        const char* algorithm) {
    return guarded([&]() -> LinearPointer {
        return c10::make_intrusive<OnednnLinear>(*weight, optional(bias), activation, algorithm);
    });
}

LinearPointer* engine_tch_linear_xnnpack(const at::Tensor* weight, const at::Tensor* bias) {
    return guarded([&]() -> LinearPointer { return c10::make_intrusive<XnnpackLinear>(*weight, optional(bias)); });
}

// `input`, `[rows, in]`, times `weight`, `[out, in]`, without oneDNN: libtorch's own matrix–vector product.
at::Tensor* engine_tch_multiply_without_onednn(const at::Tensor* weight, const at::Tensor* input) {
    return guarded([&] {
        const WithoutOnednn guard;
        return at::mm(*input, weight->t());
    });
}

at::Tensor* engine_tch_linear_multiply(const LinearPointer* linear, const at::Tensor* input) {
    return guarded([&] { return (*linear)->multiply(*input); });
}

void engine_tch_linear_free(LinearPointer* linear) { delete linear; }

// Inference mode on this thread until it is left. Modes must be left in reverse order.
c10::InferenceMode* engine_tch_enter_inference_mode() {
    return guarded([] { return c10::InferenceMode(); });
}

void engine_tch_leave_inference_mode(c10::InferenceMode* mode) { delete mode; }

}  // extern "C"
