"""The GPUs that a job names: `cuda:0`, or several, `cuda:0,cuda:1`. What they hold of a process is read by the driver."""

PREFIX = "cuda:"


def numbers(device):
    """As the framework counts them; none for `cpu`."""
    return [int(name.removeprefix(PREFIX)) for name in device.split(",") if name.startswith(PREFIX)]


def named(numbers):
    """The device of these GPUs, as a job names it."""
    return ",".join(f"{PREFIX}{number}" for number in numbers)
