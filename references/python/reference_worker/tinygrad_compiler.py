"""The compiler of tinygrad's kernels on a CPU, and where the compiled ones are kept.

tinygrad finds a kernel on disk by its source and processor, whatever compiled it. So that a process finds those of its own
compiler alone, each compiler has a file of its own beside the one that `CACHEDB` names.
"""

import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager

from . import kernel_cache
from .bundle import WorkerError, unsupported

#: Names the compiler; `CC`, which tinygrad reads, is often another one for other programs.
VARIABLE = "PHOTOFINISH_CLANG"
INSTALL = "on Debian and Ubuntu: apt-get install clang"


def choose():
    """Tells tinygrad its compiler and cache, and returns what it will find there, in words. To be called before tinygrad
    is imported, which reads both variables then."""
    compiler = os.environ["CC"] = os.environ.get(VARIABLE) or "clang"
    path, cache = shutil.which(compiler), os.environ.get("CACHEDB")
    if path and cache:
        file = os.stat(path)
        told = f"{os.path.realpath(path)} {file.st_size} {file.st_mtime_ns}"
        stem, end = os.path.splitext(cache)
        os.environ["CACHEDB"] = f"{stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}{end}"
    return kernel_cache.found("CACHEDB")


def require_compiler():
    if not shutil.which(os.environ["CC"]):
        raise WorkerError(f"tinygrad needs {os.environ['CC']} on PATH: install it ({INSTALL}), or name another in {VARIABLE}")


def name():
    """The compiler's file, links followed: where several are installed, its path has the number."""
    return os.path.realpath(shutil.which(os.environ["CC"]) or os.environ["CC"])


@contextmanager
def compiling(precision):
    """What is computed inside may compile kernels. A compiler without a type of numbers for this processor refuses each;
    what it says goes to stderr."""
    try:
        yield
    except subprocess.CalledProcessError:
        raise unsupported(
            f"{name()} compiles no kernel in {precision} for this processor: install a newer clang (19 does) and name it, "
            f"{VARIABLE}=clang-19"
        ) from None
