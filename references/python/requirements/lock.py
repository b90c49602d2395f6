"""Writes NAME.txt from NAME.in: the whole closure, each package with the hashes of its files, as pip's --require-hashes
wants it. It needs uv (`pip install uv`) and a package index: python3 lock.py [NAME …]."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# These are installed into one environment: the others take what genai's closure has.
SHARED = {"transformers": "genai", "llamacpp": "genai"}
PROJECT = """[project]
name = "references"
version = "0"
requires-python = ">=3.11"
[tool.uv]
environments = [
    "sys_platform == 'linux' and platform_machine == 'x86_64'",
    "sys_platform == 'linux' and platform_machine == 'aarch64'",
]
"""
# What uv writes for "on all of them". Without it a system that is not among them gets pip's error, not an empty
# environment.
EVERYWHERE = (
    " and ((platform_machine == 'aarch64' and sys_platform == 'linux') or "
    "(platform_machine == 'x86_64' and sys_platform == 'linux'))",
    " ; (platform_machine == 'aarch64' or platform_machine == 'x86_64') and sys_platform == 'linux'",
)
HEADER = """# Written by lock.py from {name}.in: every package, with the hashes of its files, for CPython 3.11 to 3.13 on Linux,
# x86_64 or aarch64.
"""


def main(names):
    for name in sorted(names or [path.stem for path in HERE.glob("*.in")], key=lambda name: name in SHARED):
        (HERE / f"{name}.txt").write_text(HEADER.format(name=name) + resolved(name))


def resolved(name):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "pyproject.toml").write_text(PROJECT)
        (Path(directory) / f"{name}.in").write_bytes((HERE / f"{name}.in").read_bytes())
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--no-header", "--no-annotate", f"{name}.in"]
        if name in SHARED:
            command += ["--constraint", str(HERE / f"{SHARED[name]}.txt")]
        text = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True, check=True).stdout
    for marker in EVERYWHERE:
        text = text.replace(marker, "")
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
