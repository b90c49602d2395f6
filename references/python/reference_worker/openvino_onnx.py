"""An ONNX file in OpenVINO: its reader's own words where it does not run one, and which port has which name."""

import openvino

from .bundle import WorkerError, unsupported

# What it says where it has no operator, or not all of one, and the line that then has the operator's name.
MISSING = (
    "No conversion rule", "not supported", "does not support", "Unsupported operation", "wasn't fully converted",
    "OpConversionFailure",
)
NAMED = "Conversion is failed for"


def compiled(path, wanted):
    """The file's graph, compiled for CPUs with the properties `wanted`."""
    core = openvino.Core()
    try:
        return core.compile_model(core.read_model(path), "CPU", wanted)
    except RuntimeError as error:
        raise refused(str(error)) from None


def refused(text):
    """The error to end with, in one line, of what OpenVINO says in many."""
    # Most lines tell a place in its sources.
    lines = [line.strip("- ") for line in text.splitlines() if line.strip() and " src/" not in line] or text.split("\n")
    if not any(missing in line for missing in MISSING for line in lines):
        return WorkerError(" ".join(f"OpenVINO does not run this file: {' '.join(lines)}".split()))
    told = [line for line in lines if any(words in line for words in (*MISSING, NAMED))]
    return unsupported(" ".join(f"OpenVINO does not run this file: {'; '.join(told)}".split()))


def ports(found, names):
    """The port of each name. OpenVINO keeps the file's names; where it does not, ports are in the file's order."""
    named = {name: port for port in found for name in port.get_names()}
    missing = [name for name in names if name not in named]
    if missing and len(found) != len(names):
        raise WorkerError(f"OpenVINO has no {missing[0]} in its graph of this file")
    return [named.get(name, port) for name, port in zip(names, found)] if missing else [named[name] for name in names]


def tensor(port, array):
    """The array where OpenVINO reads it, in the port's type."""
    copy = openvino.Tensor(port.get_element_type(), array.shape)
    copy.data[...] = array
    return copy
