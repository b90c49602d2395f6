// The common parts of the shim.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/custom_class.h>

#include <exception>
#include <string>

namespace engine_tch {

inline thread_local std::string last_error;

// Returns whether `compute` succeeded; sets `last_error` if it throws. What is thrown beyond the shim ends the process
// without a word.
template <typename Compute>
bool done(Compute compute) {
    try {
        compute();
        return true;
    } catch (const c10::Error& error) {
        last_error = error.what_without_backtrace();
    } catch (const std::exception& error) {
        last_error = error.what();
    } catch (...) {
        last_error = "libtorch has thrown something that is no std::exception";
    }
    return false;
}

// Returns the result of `compute`, owned by the caller; if it throws, returns null and sets `last_error`.
template <typename Compute>
auto guarded(Compute compute) -> decltype(compute())* {
    decltype(compute())* made = nullptr;
    done([&] { made = new auto(compute()); });
    return made;
}

// input · weightᵀ + bias, for any layout of the weight. It is a class in TorchScript.
struct Linear : torch::CustomClassHolder {
    virtual at::Tensor multiply(const at::Tensor& input) const = 0;
};

}  // namespace engine_tch
