"""llama.cpp's C interface, as far as the adapter calls it: `include/llama.h` of the versions below, by ctypes."""

import ctypes
import os
import re
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path

from .bundle import WorkerError, bad_input, unsupported

# Their structures have the same layout. Those of others may have another, which no call would notice.
VERSIONS = ("0.4.", "0.5.")
DIRECTORY = "PHOTOFINISH_LLAMACPP"
# One of the CPU libraries of that directory, in place of the best that the processor can run.
CPU = "PHOTOFINISH_LLAMACPP_CPU"
CPU_DEVICE = 0

LogCallback = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class ModelParams(Structure):
    _fields_ = [
        ("devices", c_void_p), ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32), ("split_mode", c_int), ("load_mode", c_int), ("lazy_mode", c_int),
        ("main_gpu", c_int32), ("tensor_split", c_void_p),
        ("progress_callback", c_void_p), ("progress_callback_user_data", c_void_p), ("kv_overrides", c_void_p),
        ("vocab_only", c_bool), ("check_tensors", c_bool), ("use_extra_bufts", c_bool), ("no_host", c_bool),
        ("no_alloc", c_bool), ("load_mtp", c_bool),
    ]


class ContextParams(Structure):
    _fields_ = [
        ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32), ("n_outputs_max", c_uint32), ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32), ("n_threads_batch", c_int32),
        ("ctx_type", c_int), ("rope_scaling_type", c_int), ("pooling_type", c_int), ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float), ("rope_freq_scale", c_float), ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float), ("yarn_beta_fast", c_float), ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32), ("defrag_thold", c_float),
        ("cb_eval", c_void_p), ("cb_eval_user_data", c_void_p), ("type_k", c_int), ("type_v", c_int),
        ("abort_callback", c_void_p), ("abort_callback_data", c_void_p),
        ("embeddings", c_bool), ("offload_kqv", c_bool), ("no_perf", c_bool), ("op_offload", c_bool),
        ("swa_full", c_bool), ("kv_unified", c_bool),
        ("samplers", c_void_p), ("n_samplers", c_size_t), ("ctx_other", c_void_p),
    ]


class Batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", POINTER(c_float)), ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    ]


class ThreadpoolParams(Structure):
    """Read by ggml alone: larger than its own."""

    _fields_ = [("opaque", c_int8 * 4096)]


NewThreadpool = ctypes.CFUNCTYPE(c_void_p, POINTER(ThreadpoolParams))

SIGNATURES = {
    "ggml_backend_dev_backend_reg": (c_void_p, c_void_p),
    "ggml_backend_dev_by_type": (c_void_p, c_int),
    "ggml_backend_load": (c_void_p, c_char_p),
    "ggml_backend_load_all_from_path": (None, c_char_p),
    "ggml_backend_reg_get_proc_address": (c_void_p, c_void_p, c_char_p),
    "ggml_commit": (c_char_p,),
    "ggml_threadpool_params_default": (ThreadpoolParams, c_int),
    "llama_attach_threadpool": (None, c_void_p, c_void_p, c_void_p),
    "llama_backend_init": (None,),
    "llama_batch_free": (None, Batch),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_context_default_params": (ContextParams,),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_free": (None, c_void_p),
    "llama_get_logits_ith": (POINTER(c_float), c_void_p, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_log_set": (None, LogCallback, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_model_default_params": (ModelParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_print_system_info": (c_char_p,),
    "llama_supports_gpu_offload": (c_bool,),
}


def load():
    """The library, with its path and version. It computes nothing before `load_backends`."""
    if not os.environ.get(DIRECTORY):
        raise bad_input(f"{DIRECTORY} is not set: name the directory of llama.cpp's libraries in configs/engines")
    directory = Path(os.environ[DIRECTORY])
    # Beside it are libllama-common and, in a build, links to it with fewer numbers in their names.
    files = sorted(directory.glob("libllama.*"), key=lambda file: len(file.name))
    if not files:
        raise bad_input(
            f"there is no libllama.so in {directory}: run `photofinish setup --references=llamacpp`, or name the directory "
            f"of your own libraries in {DIRECTORY}"
        )
    path = files[0]
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise WorkerError(f"{path} cannot be loaded: {error}") from None
    version = getattr(library, "llama_version", None)
    if version:
        version.restype = c_char_p
    version = version().decode() if version else "older than 0.4"
    if not version.startswith(VERSIONS):
        written_for = " and ".join(f"{version}x" for version in VERSIONS)
        raise bad_input(
            f"{path} is llama.cpp {version}, and this worker is written for {written_for}: name the directory of such "
            f"libraries in {DIRECTORY}, or unset it"
        )
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library, path, f"{version}+{library.ggml_commit().decode()}"


def load_backends(library, directory):
    """Loads what computes: the best CPU library of the directory, and those of other devices, or the CPU library that
    the environment names. A build with its CPU code linked in has none. Returns the name of the CPU library."""
    asked = os.environ.get(CPU)
    if not asked:
        library.ggml_backend_load_all_from_path(str(directory).encode())
    else:
        file = directory / f"libggml-cpu-{asked}.so"
        if not file.is_file():
            there = sorted(file.stem.removeprefix("libggml-cpu-") for file in directory.glob("libggml-cpu-*.so"))
            raise bad_input(f"{CPU}={asked}: {directory} has no {file.name}; it has {', '.join(there) or 'none'}")
        if not library.ggml_backend_load(str(file).encode()):
            raise unsupported(f"this processor lacks instructions of {file.name}")
    if not library.ggml_backend_dev_by_type(CPU_DEVICE):
        raise unsupported(f"{directory} has no CPU library of ggml that this processor can run")
    return cpu_library(Path("/proc/self/maps").read_text())


def cpu_library(maps):
    """The name of ggml's CPU library among a process's mapped files."""
    found = re.search(r"/lib(ggml-cpu[^/\s]*?)\.so", maps)
    return found.group(1) if found else "ggml-cpu"


def new_threadpool(library, threads):
    """The threads that compute, kept from one call to the next as in llama.cpp's own programs. Without one, ggml starts
    threads for each call."""
    cpu = library.ggml_backend_dev_backend_reg(library.ggml_backend_dev_by_type(CPU_DEVICE))
    new = NewThreadpool(library.ggml_backend_reg_get_proc_address(cpu, b"ggml_threadpool_new"))
    pool = new(library.ggml_threadpool_params_default(threads))
    if not pool:
        raise WorkerError(f"ggml cannot start {threads} threads")
    return pool
