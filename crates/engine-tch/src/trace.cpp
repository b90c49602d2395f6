// TorchScript modules that are traced or read from a file. `trace.rs` has the Rust side.

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/fixup_trace_scope_blocks.h>
#include <torch/csrc/jit/passes/normalize_ops.h>
#include <torch/csrc/jit/serialization/import.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shim.h"

namespace {

using engine_tch::done, engine_tch::guarded;
namespace jit = torch::jit;

// Takes ownership of a tensor.
using Give = void (*)(void* context, at::Tensor* tensor);

void give_all(const c10::IValue& value, void* context, Give give) {
    if (value.isTensor()) {
        give(context, new at::Tensor(value.toTensor()));
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
            give(context, new at::Tensor(tensor));
        }
    } else if (value.isTuple()) {
        for (const c10::IValue& element : value.toTupleRef().elements()) {
            give_all(element, context, give);
        }
    } else if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) {
            give_all(element, context, give);
        }
    } else if (value.isGenericDict()) {
        for (const auto& element : value.toGenericDict()) {
            give_all(element.value(), context, give);
        }
    } else {
        TORCH_CHECK(false, "the module returns a ", value.tagKind(), ", not tensors");
    }
}

void give_constants(jit::Block* block, void* context, Give give) {
    for (jit::Node* node : block->nodes()) {
        if (node->kind() == c10::prim::Constant && node->hasAttribute(c10::attr::value) &&
            node->kindOf(c10::attr::value) == jit::AttributeKind::t) {
            give(context, new at::Tensor(node->t(c10::attr::value)));
        }
        for (jit::Block* inner : node->blocks()) {
            give_constants(inner, context, give);
        }
    }
}

// The parameters of a convolution over two axes.
struct Convolution {
    const int64_t* pads;
    const int64_t* strides;
    const int64_t* dilations;
    int64_t groups;
};

// A convolution with a weight in the layout that oneDNN chose. mkldnn's own operator has a list of a type that the tracer
// does not record.
at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    at::IntArrayRef pads, at::IntArrayRef strides, at::IntArrayRef dilations, int64_t groups) {
    using Scalars = c10::List<std::optional<at::Scalar>>;
    static const auto pointwise =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("mkldnn::_convolution_pointwise", "")
            .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, at::IntArrayRef,
                              at::IntArrayRef, at::IntArrayRef, int64_t, std::string_view, Scalars,
                              std::optional<std::string_view>)>();
    return pointwise.call(input, weight, bias, pads, strides, dilations, groups, "none", Scalars(), std::nullopt);
}

TORCH_LIBRARY_FRAGMENT(engine_tch, library) {
    library.def(
        "convolution(Tensor input, Tensor weight, Tensor? bias, int[] pads, int[] strides, int[] dilations, int groups) "
        "-> Tensor",
        &convolve);
}

}  // namespace

extern "C" {

// The weight of a convolution over two axes of an input of that size, in the layout that oneDNN chooses.
at::Tensor* engine_tch_convolution_pack(const at::Tensor* weight, const Convolution* how, const int64_t* size) {
    return guarded([&] {
        const auto pack = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_reorder_convolution_weight", "");
        const auto two = [](const int64_t* first) { return std::vector<int64_t>(first, first + 2); };
        jit::Stack stack{*weight,           two(how->pads), two(how->strides),
                         two(how->dilations), how->groups,    std::vector<int64_t>(size, size + 4)};
        pack.callBoxed(stack);
        return stack[0].toTensor();
    });
}

at::Tensor* engine_tch_convolution(const at::Tensor* input, const at::Tensor* weight, const at::Tensor* bias,
                                   const Convolution* how) {
    return guarded([&] {
        static const auto convolution =
            c10::Dispatcher::singleton()
                .findSchemaOrThrow("engine_tch::convolution", "")
                .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                  at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, int64_t)>();
        const auto two = [](const int64_t* first) { return at::IntArrayRef(first, 2); };
        const auto given = bias ? std::make_optional(*bias) : std::nullopt;
        return convolution.call(*input, *weight, given, two(how->pads), two(how->strides), two(how->dilations),
                                how->groups);
    });
}

// Records what is computed with these tensors on this thread, until `end` or `abandon`.
jit::Module* engine_tch_trace_begin(const at::Tensor* const* inputs, size_t count) {
    return guarded([&] {
        TORCH_CHECK(!jit::tracer::isTracing(), "a trace is recorded already");
        jit::Module module(c10::QualifiedName("Graph"));
        auto state = std::make_shared<jit::tracer::TracingState>();
        state->graph->insertInput(0, "self")->setType(module._ivalue()->type());
        jit::tracer::setTracingState(state);
        for (size_t index = 0; index < count; ++index) {
            auto* value = state->graph->addInput();
            value->setType(c10::TensorType::get());
            state->setValue(*inputs[index], value);
        }
        return module;
    });
}

void engine_tch_trace_abandon() { jit::tracer::abandon(); }

// Until `resume`, what is made on this thread is no part of the record, and becomes a constant where the record takes
// it.
at::tracer::impl::NoTracerDispatchMode* engine_tch_trace_pause() {
    return new at::tracer::impl::NoTracerDispatchMode;
}

void engine_tch_trace_resume(at::tracer::impl::NoTracerDispatchMode* paused) { delete paused; }

// Makes the record the module's method `forward`, which returns these tensors as a tuple.
bool engine_tch_trace_end(jit::Module* module, const at::Tensor* const* outputs, size_t count) {
    const bool ended = done([&] {
        auto state = jit::tracer::getTracingState();
        TORCH_CHECK(state, "no trace is recorded");
        std::vector<jit::Value*> values;
        for (size_t index = 0; index < count; ++index) {
            values.push_back(state->getOutput(*outputs[index], index));
        }
        auto* tuple = state->graph->insertNode(state->graph->createTuple(values));
        state->graph->registerOutput(tuple->output());
        jit::FixupTraceScopeBlocks(state->graph, module);
        jit::NormalizeOps(state->graph);
        jit::tracer::setTracingState(nullptr);
        auto* forward = module->_ivalue()->compilation_unit()->create_function("forward", state->graph);
        module->type()->addMethod(forward);
        module->register_attribute("training", c10::BoolType::get(), false);
    });
    if (!ended) {
        jit::tracer::abandon();
    }
    return ended;
}

// Makes constants of what the module holds, and computes what follows from constants.
bool engine_tch_trace_freeze(jit::Module* module) {
    return done([&] { *module = jit::freeze(*module); });
}

jit::Module* engine_tch_trace_load(const char* path) {
    return guarded([&] {
        jit::Module module = jit::load(std::string(path));
        module.eval();
        return module;
    });
}

void engine_tch_trace_free(jit::Module* module) { delete module; }

// Calls `forward`, and gives its tensors in their order.
bool engine_tch_trace_run(jit::Module* module, const at::Tensor* const* inputs, size_t count, void* context,
                          Give give) {
    return done([&] {
        std::vector<c10::IValue> values;
        values.reserve(1 + count);  // and the module itself
        for (size_t index = 0; index < count; ++index) {
            values.emplace_back(*inputs[index]);
        }
        give_all(module->forward(std::move(values)), context, give);
    });
}

// Gives every tensor that the module holds, also as a constant of its method.
bool engine_tch_trace_tensors(jit::Module* module, void* context, Give give) {
    return done([&] {
        for (const at::Tensor& tensor : module->parameters()) {
            give(context, new at::Tensor(tensor));
        }
        for (const at::Tensor& tensor : module->buffers()) {
            give(context, new at::Tensor(tensor));
        }
        give_constants(module->get_method("forward").graph()->block(), context, give);
    });
}

}  // extern "C"
