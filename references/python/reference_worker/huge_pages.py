"""Sees to it that glibc asks for huge pages where the run wants them: see crates/worker/src/huge_pages.rs."""

import ctypes
import os
import sys

_MOST, _AGAIN = 16, "PHOTOFINISH_AGAIN"


def insist():
    """Starts this program again if glibc was told to ask for huge pages and does not. Nothing must have been read yet."""
    if "glibc.malloc.hugetlb=1" not in os.environ.get("GLIBC_TUNABLES", "") or not _leaves_it_to_programs():
        return
    again = os.environ.get(_AGAIN, "")
    if len(again) < _MOST and not _are_asked_for():
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _AGAIN: again + "x"})


def _leaves_it_to_programs():
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[madvise]" in file.read()
    except OSError:
        return False


def _are_asked_for():
    """Whether a large allocation, which is never touched, is marked for huge pages."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    address = libc.malloc(64 << 20)
    try:
        with open("/proc/self/smaps") as file:
            is_it = False
            for line in file:
                first = line.split(maxsplit=1)[0]
                if not first.endswith(":"):
                    start, end = (int(part, 16) for part in first.split("-"))
                    is_it = start <= address < end
                elif is_it and first == "VmFlags:":
                    return "hg" in line.split()
    except OSError:
        pass
    finally:
        libc.free(address)
    return True
