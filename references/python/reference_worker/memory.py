"""Memory of this process, by phase: `VmHWM`, reset by writing 5 to `/proc/self/clear_refs`."""


class Phase:
    """The peak counts from here, or from the start of the process where it cannot be reset."""

    def __init__(self):
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            self._method = "VmHWM, reset at the start of the phase"
        except OSError:
            self._method = "VmHWM of the process so far"

    def end(self, adapter=None):
        """The phase's peak, and what is resident now; with an adapter what its framework has allocated on GPUs. Never
        call it within a timed interval."""
        status, rollup = _read("/proc/self/status"), _read("/proc/self/smaps_rollup")
        peak = kibibytes(status, "VmHWM")
        return {
            "peak_bytes": peak,
            "resident_bytes": kibibytes(status, "VmRSS"),
            "anonymous_bytes": kibibytes(status, "RssAnon"),
            "file_bytes": kibibytes(status, "RssFile"),
            "pss_bytes": kibibytes(rollup, "Pss"),
            "huge_bytes": kibibytes(rollup, "AnonHugePages"),
            "method": None if peak is None else self._method,
            "gpu": None,
            "gpu_allocator": None if adapter is None else adapter.gpu_allocated(),
        }


def kibibytes(text, field):
    """The bytes of a line such as `VmRSS:  10 kB`."""
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
