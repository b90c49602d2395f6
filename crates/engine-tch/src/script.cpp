// TorchScript modules compiled from source. `script.rs` has the Rust side.

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/codegen/fuser/interface.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <string>
#include <utility>
#include <vector>

#include "shim.h"

namespace {

using engine_tch::Linear, engine_tch::done, engine_tch::guarded;

}  // namespace

extern "C" {

torch::jit::Module* engine_tch_script_new() {
    return guarded([] { return torch::jit::Module(c10::QualifiedName("Layer")); });
}

void engine_tch_script_free(torch::jit::Module* script) { delete script; }

// An attribute of type `Tensor`, or `None` if `tensor` is null.
bool engine_tch_script_tensor(torch::jit::Module* script, const char* name, const at::Tensor* tensor) {
    return done([&] {
        if (tensor) {
            script->register_attribute(name, c10::TensorType::get(), *tensor);
        } else {
            script->register_attribute(name, c10::NoneType::get(), c10::IValue());
        }
    });
}

bool engine_tch_script_linear(torch::jit::Module* script, const char* name, const c10::intrusive_ptr<Linear>* linear) {
    return done([&] {
        script->register_attribute(name, c10::getCustomClassType<c10::intrusive_ptr<Linear>>(), *linear);
    });
}

bool engine_tch_script_int(torch::jit::Module* script, const char* name, int64_t value) {
    return done([&] { script->register_attribute(name, c10::IntType::get(), value); });
}

bool engine_tch_script_float(torch::jit::Module* script, const char* name, double value) {
    return done([&] { script->register_attribute(name, c10::FloatType::get(), value); });
}

bool engine_tch_script_string(torch::jit::Module* script, const char* name, const char* value) {
    return done([&] { script->register_attribute(name, c10::StringType::get(), std::string(value)); });
}

// Compiles the methods in `source`. Freezing keeps only `forward` and makes the attributes constants.
bool engine_tch_script_compile(torch::jit::Module* script, const char* source) {
    return done([&] {
        script->register_attribute("training", c10::BoolType::get(), false);
        script->define(source);
        *script = torch::jit::freeze(*script);
    });
}

// Calls `forward` with the tensors, which may be null.
bool engine_tch_script_run(torch::jit::Module* script, const at::Tensor* const* tensors, size_t count) {
    return done([&] {
        std::vector<c10::IValue> inputs;
        inputs.reserve(1 + count);  // and the module itself
        for (size_t index = 0; index < count; ++index) {
            inputs.push_back(tensors[index] ? c10::IValue(*tensors[index]) : c10::IValue());
        }
        script->forward(std::move(inputs));
    });
}

// Whether the JIT records shapes in the first runs and then fuses kernels for them; for the whole process.
void engine_tch_script_set_profiling(bool profiling) { torch::jit::getProfilingMode() = profiling; }

// Whether the JIT can fuse operators into its own kernels on the CPU, for which it needs LLVM.
bool engine_tch_script_fuses_on_cpu() { return torch::jit::canFuseOnCPU(); }

}  // extern "C"
