"""The system's page cache: whether a load starts from the disk or from memory."""

import ctypes
import mmap
import os
import sys


LOWEST_BIT = bytes(value & 1 for value in range(256))


def prepare(path, evict):
    """Drops the file from the page cache if `evict` asks for it, and then says how much of it is there.

    None where the system does not report.
    """
    if sys.platform != "linux":
        return None
    try:
        with open(path, "rb") as file:
            if evict:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            # To others than the owner and those who may write, the kernel says that every page is resident.
            if os.fstat(file.fileno()).st_uid != os.geteuid() and not os.access(path, os.W_OK):
                raise PermissionError("mincore tells the truth only to its owner and to those who may write it")
            return {"evicted": evict, "resident_before": _resident_share(file)}
    except OSError as error:
        print(f"page cache of {path}: {error}", file=sys.stderr)
        return None


def _resident_share(file):
    size = os.fstat(file.fileno()).st_size
    count = -(-size // mmap.PAGESIZE)
    if count == 0:
        return 0.0
    # A private mapping that may be written, or ctypes gives no address of it; nothing is written.
    with mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapping:
        pages = (ctypes.c_ubyte * count)()
        start = ctypes.c_char.from_buffer(mapping)
        libc = ctypes.CDLL(None, use_errno=True)
        status = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # the mapping cannot be closed while it is referred to
        if status != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    # The lowest bit is the page's; the others are reserved. A loop over the million pages of 5 GB takes 0.1 s, which
    # would pass for a load that hides time (R18).
    return bytes(pages).translate(LOWEST_BIT).count(1) / count
