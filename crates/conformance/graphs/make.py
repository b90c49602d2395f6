"""Writes the ONNX files of this directory, and beside each what it is given and what it gives.

Run it in this directory with numpy and onnx installed: python make.py
"""

import base64
import json
import pathlib

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

# Of the operators, where a file needs no other.
OPSET = 17
MOST_BYTES = 4096

node = helper.make_node
value = helper.make_tensor_value_info


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def described(name, array):
    """A tensor as the tests read it."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": base64.b64encode(data).decode(),
    }


def save(name, nodes, inputs, outputs, weights=(), given=(), opset=OPSET, beside=False):
    """One file. `given`: the arrays of the inputs, in their order."""
    graph = helper.make_graph(nodes, name, inputs, outputs, list(weights))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, producer_name="make.py"
    )
    onnx.checker.check_model(model, full_check=True)
    names = [one.name for one in inputs]
    found = ReferenceEvaluator(model).run(None, dict(zip(names, given, strict=True)))
    if beside:
        file = f"{name}.data"
        # onnx refuses to write over it.
        pathlib.Path(file).unlink(missing_ok=True)
        onnx.save_model(
            model, f"{name}.onnx", save_as_external_data=True, location=file, size_threshold=0
        )
    else:
        onnx.save(model, f"{name}.onnx")
    tensors = {
        "inputs": [described(*one) for one in zip(names, given)],
        "outputs": [described(one.name, array) for one, array in zip(outputs, found, strict=True)],
    }
    with open(f"{name}.json", "w") as file:
        file.write("{\n")
        for kind, end in (("inputs", ","), ("outputs", "")):
            lines = ",\n".join("  " + json.dumps(tensor) for tensor in tensors[kind])
            file.write(f' "{kind}": [\n{lines}\n ]{end}\n')
        file.write("}\n")
    with open(f"{name}.onnx", "rb") as file:
        assert len(file.read()) < MOST_BYTES, name
    return found


random = np.random.default_rng(7)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


save(
    "inputs",
    [
        node("MatMul", ["x", "w"], ["a"]),
        node("Gather", ["a", "ids"], ["rows"], axis=0),
        node("Where", ["mask", "rows", "zero"], ["y"]),
        node("Cast", ["mask"], ["ones"], to=T.INT64),
        node("ReduceSum", ["ones", "axes"], ["counts"], keepdims=0),
        node("Not", ["mask"], ["hidden"]),
    ],
    [
        value("x", T.FLOAT, ["rows", 8]),
        value("ids", T.INT64, ["ids"]),
        value("mask", T.BOOL, ["ids", 6]),
    ],
    [
        value("y", T.FLOAT, ["ids", 6]),
        value("counts", T.INT64, ["ids"]),
        value("hidden", T.BOOL, ["ids", 6]),
    ],
    [constant("w", normal(8, 6)), constant("zero", np.float32(0)), constant("axes", np.int64([1]))],
    [normal(5, 8), np.int64([4, 0, 3, 3]), random.random((4, 6)) < 0.5],
)

save(
    "external",
    [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["y"])],
    [value("x", T.FLOAT, ["rows", 8])],
    [value("y", T.FLOAT, ["rows", 6])],
    [constant("w", normal(8, 6)), constant("b", normal(6))],
    [normal(3, 8)],
    beside=True,
)

save(
    "scalars",
    [node("Mul", ["x", "factor"], ["a"]), node("ReduceSum", ["a"], ["y"], keepdims=0)],
    [value("x", T.FLOAT, [3, 4]), value("factor", T.FLOAT, [])],
    [value("y", T.FLOAT, [])],
    given=[normal(3, 4), np.float32(2.5)],
)


def branch(operator, output):
    return helper.make_graph(
        [node(operator, ["x"], [output])], output, [], [value(output, T.FLOAT, [2, 3])]
    )


def choice(output, condition, then, otherwise):
    branches = {"then_branch": branch(*then), "else_branch": branch(*otherwise)}
    return node("If", [condition], [output], name=output, **branches)


for name, condition in (("if-then", True), ("if-else", False)):
    save(
        name,
        [choice("y", "condition", ("Relu", "a"), ("Neg", "b"))],
        [value("x", T.FLOAT, [2, 3]), value("condition", T.BOOL, [])],
        [value("y", T.FLOAT, [2, 3])],
        given=[normal(2, 3), np.bool_(condition)],
    )

save(
    "if-twice",
    [
        node("Not", ["condition"], ["other"]),
        choice("y", "condition", ("Relu", "a"), ("Neg", "b")),
        choice("z", "other", ("Exp", "c"), ("Abs", "d")),
    ],
    [value("x", T.FLOAT, [2, 3]), value("condition", T.BOOL, [])],
    [value(name, T.FLOAT, [2, 3]) for name in "yz"],
    given=[normal(2, 3), np.bool_(False)],
)

save(
    "nonzero",
    [node("NonZero", ["x"], ["places"]), node("ArgMax", ["x"], ["largest"], axis=1, keepdims=0)],
    [value("x", T.FLOAT, ["rows", "columns"])],
    [value("places", T.INT64, [2, None]), value("largest", T.INT64, ["rows"])],
    given=[np.float32([[0, 1.5, 0, -2], [3, 0, 0, 0], [0, 0, 0, 0.5]])],
)

save(
    "float64",
    [node("Mul", ["x", "w"], ["a"]), node("Exp", ["a"], ["y"])],
    [value("x", T.DOUBLE, ["rows", 4])],
    [value("y", T.DOUBLE, ["rows", 4])],
    [constant("w", random.standard_normal(4))],
    [random.standard_normal((2, 4))],
)

# Eighths and whole numbers: exact in 16 bits, whatever a framework computes in.
save(
    "float16",
    [
        node("Mul", ["x", "w"], ["a"]),
        node("Add", ["a", "b"], ["y"]),
        node("Cast", ["y"], ["wide"], to=T.FLOAT),
        node("Sigmoid", ["wide"], ["z"]),
    ],
    [value("x", T.FLOAT16, ["rows", 4])],
    [value("y", T.FLOAT16, ["rows", 4]), value("z", T.FLOAT, ["rows", 4])],
    [constant("w", np.float16([0.5, -1, 2, 4])), constant("b", np.float16([1, 0.25, -3, 0]))],
    [(random.integers(-16, 16, (3, 4)) / 8).astype(np.float16)],
)

# Weights of 7 bits. On x86 without VNNI, kernels add two products of 8 by 8 bits in 16 bits, which saturate beyond.
weight = (random.integers(-127, 128, (8, 6)) // 2).astype(np.int8)
codes = random.integers(0, 256, (3, 8)).astype(np.uint8)
exact = (codes.astype(np.float64) - 128) * 0.05 @ (weight * 0.02)
apart = np.abs(exact / 0.3 - np.floor(exact / 0.3) - 0.5)
assert apart.min() > 0.01, "a number lies between two codes: kernels may round it either way"
save(
    "quantised",
    [
        node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["a"]),
        node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["b"]),
        node("MatMul", ["a", "b"], ["c"]),
        node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["y"]),
    ],
    [value("x", T.UINT8, ["rows", 8])],
    [value("y", T.UINT8, ["rows", 6])],
    [
        constant("w", weight),
        constant("x_scale", np.float32(0.05)),
        constant("x_zero", np.uint8(128)),
        constant("w_scale", np.float32(0.02)),
        constant("w_zero", np.int8(0)),
        constant("y_scale", np.float32(0.3)),
        constant("y_zero", np.uint8(120)),
    ],
    [codes],
    # The reference evaluator has no earlier version of these operators.
    opset=19,
)

save(
    "gelu",
    [node("Gelu", ["x"], ["y"])],
    [value("x", T.FLOAT, ["rows", 8])],
    [value("y", T.FLOAT, ["rows", 8])],
    given=[normal(2, 8)],
    opset=21,
)

body = helper.make_graph(
    [
        node("Mul", ["sum", "half"], ["less"]),
        node("Add", ["less", "x"], ["next"]),
        node("Identity", ["goes_on"], ["still"]),
    ],
    "body",
    [value("turn", T.INT64, []), value("goes_on", T.BOOL, []), value("sum", T.FLOAT, [2])],
    [value("still", T.BOOL, []), value("next", T.FLOAT, [2])],
)
save(
    "loop",
    [node("Loop", ["turns", "true", "start"], ["y"], body=body)],
    [value("x", T.FLOAT, [2]), value("turns", T.INT64, [])],
    [value("y", T.FLOAT, [2])],
    [
        constant("true", np.bool_(True)),
        constant("start", np.float32([0, 1])),
        constant("half", np.float32(0.5)),
    ],
    [normal(2), np.int64(5)],
)

save(
    "convolution",
    [
        node("Conv", ["images", "w", "b"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        node("Relu", ["a"], ["c"]),
        node("Conv", ["c", "depthwise"], ["d"], group=4, kernel_shape=[2, 2]),
        node("GlobalAveragePool", ["d"], ["pooled"]),
        node("Flatten", ["pooled"], ["y"]),
    ],
    [value("images", T.FLOAT, ["batch", 3, "height", "width"])],
    [value("d", T.FLOAT, ["batch", 4, None, None]), value("y", T.FLOAT, ["batch", 4])],
    [constant("w", normal(4, 3, 3, 3)), constant("b", normal(4)), constant("depthwise", normal(4, 1, 2, 2))],
    [normal(2, 3, 8, 10)],
)
