"""The GPUs that a job names: `cuda:0`, or several, `cuda:0,cuda:1`. What they hold of a process is read by the driver."""

from .bundle import bad_input, unsupported

PREFIX = "cuda:"


def numbers(device):
    """As the framework counts them; none for `cpu`."""
    return [int(name.removeprefix(PREFIX)) for name in device.split(",") if name.startswith(PREFIX)]


def memory_fraction(settings):
    """The share of a GPU's memory that the framework's pool may have, by the option `memory_fraction`; None where it is not
    given."""
    given = settings.get("options", {}).get("memory_fraction")
    if given is None:
        return None
    try:
        fraction = float(given)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise bad_input(f"option memory_fraction is {given!r}: give a share above 0 and up to 1, such as 0.5")
    if not numbers(settings["device"]):
        raise unsupported("memory_fraction limits the pool of a GPU's memory, and on a CPU there is none: name a GPU by --device")
    return fraction


def named(numbers):
    """The device of these GPUs, as a job names it."""
    return ",".join(f"{PREFIX}{number}" for number in numbers)
