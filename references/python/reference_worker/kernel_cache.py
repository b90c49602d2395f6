"""Compiled kernels that a framework keeps on disk from one process to the next."""

import os


def found(variable):
    """What a process finds where an environment variable says that kernels are kept, in words. To be asked before the
    framework writes there."""
    place = os.environ.get(variable)
    if not place:
        return "no kernels kept on disk"
    is_there = os.path.isfile(place) or (os.path.isdir(place) and any(os.scandir(place)))
    return "kernels of earlier processes found on disk" if is_there else "kernel cache on disk empty at the start"
