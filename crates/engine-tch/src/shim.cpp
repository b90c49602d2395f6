// What libtorch offers to C++ and torch-sys does not wrap. `shim.rs` is the other half.

#include <ATen/Version.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include <torch/version.h>

namespace {

thread_local std::string last_error;

// Runs `compute` and hands its tensor over; null and `last_error` if it throws.
template <typename Compute>
at::Tensor* guarded(Compute compute) {
    try {
        return new at::Tensor(compute());
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
at::Tensor* engine_tch_pack(const at::Tensor* weight) {
    return guarded([&] {
        static const auto pack =
            find<at::Tensor(const at::Tensor&, std::optional<int64_t>)>("mkldnn::_reorder_linear_weight");
        return pack.call(*weight, std::nullopt);
    });
}

// input · weightᵀ + bias, where `weight` is packed and `bias` may be null.
at::Tensor* engine_tch_packed_linear(const at::Tensor* input, const at::Tensor* weight, const at::Tensor* bias) {
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

}  // extern "C"
