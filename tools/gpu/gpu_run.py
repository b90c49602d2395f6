#!/usr/bin/env python3
"""Measures a plan of comparisons on a borrowed GPU, in order of value, within some minutes (docs/how-to/gpu.md).

`run` continues where it stopped, and keeps every complete result. A borrowed machine may have neither a network nor
cargo: for such a machine `pack` writes an installation in pieces, this program included. NVIDIA's and PyTorch's packages
are then those of the machine's own python3. Python 3.8 or later, without packages."""

import argparse
import glob
import hashlib
import os
import pathlib
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "photofinish"
# Kernels for the machines of the last ten years, as in `cargo xtask dist`.
RUSTFLAGS = "-C target-cpu=x86-64-v3"


def read_plan(text):
    steps = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, minutes, asks, command = (part.strip() for part in line.split("|", 3))
            if not name.replace("-", "").isalnum() or name in [step[0] for step in steps] or float(minutes) <= 0:
                sys.exit(f"error: step {name!r}: a name of its own of letters, digits and hyphens, and minutes above 0")
            steps.append((name, float(minutes), asks, shlex.split(command)))
    return steps


def follow(steps, program, results, minutes, environment):
    """Runs the steps that are not complete, as long as there is time; whether all are complete now."""
    begun, left = time.monotonic(), []
    for name, most, asks, words in steps:
        directory = results / name
        if (directory / "complete").is_file():
            print(f"{name}: complete from an earlier call")
            continue
        if time.monotonic() - begun + 60 * most > 60 * minutes:
            print(f"{name}: waits, {most:g} min no longer fit")
            left.append(name)
            continue
        print(f"{name}: {asks}", flush=True)
        directory.mkdir(parents=True, exist_ok=True)
        command = [program, *words, "--device", "cuda", "--quiet", "--results-dir", str(directory)]
        with open(directory / "log.txt", "w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                code = child.wait(timeout=60 * most)
            except subprocess.TimeoutExpired:
                # It ends its workers and keeps what it measured.
                child.terminate()
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                code = f"ended by its limit of {most:g} min"
        if code == 0:
            (directory / "complete").write_text(shlex.join(words) + "\n")
            print(f"{name}: complete")
        else:
            print(f"{name}: failed ({code}): {directory / 'log.txt'} says why")
            left.append(name)
        for report in directory.glob("*/report.json"):
            if not report.parent.with_suffix(".tar.gz").is_file():
                subprocess.run([program, "report", str(report.parent), "--archive"], env=environment)
    if left:
        print(f"not complete: {', '.join(left)}. The same command goes on with them.")
    return not left


def environment_of(root):
    """The variables of an unpacked installation, with the libraries and the frameworks of the machine's own python3."""
    import importlib.util

    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit("error: this machine's python3 must have PyTorch with CUDA")
    packages = pathlib.Path(torch.submodule_search_locations[0]).parent
    if not (packages / "nvidia").is_dir():
        sys.exit(f"error: {packages / 'nvidia'} is missing: this machine's python3 must have PyTorch with CUDA")
    lend_python(packages, CACHE / "references")
    library = glob.glob(f"{root}/lib/onnxruntime/libonnxruntime.so*")[0]
    found = {"PHOTOFINISH_CUDA": packages / "nvidia", "LIBTORCH": packages / "torch", "ORT_DYLIB_PATH": library}
    return {name: str(path) for name, path in found.items()}


def lend_python(packages, references):
    """Lets references run in the machine's own Python, where none is set up, with the versions there."""
    references.mkdir(parents=True, exist_ok=True)
    own = references / "venv-of-the-machine"
    if not own.exists():
        # PREFIX/lib/python3.12/site-packages
        own.symlink_to(packages.parents[2])
    for package, name in [("transformers", "transformers"), ("jax", "jax-cuda")]:
        receipt = references / f"{name}.txt"
        if (packages / package).is_dir() and not receipt.exists():
            (references / f"{name}.python").write_text(f"{own.name}/bin/python3\n")
            receipt.write_text("of this machine\n")


def run(asked):
    environment = os.environ | {"PHOTOFINISH_PROVISIONED": "1"} if asked.installed else dict(os.environ)
    if asked.installed:
        environment.update(environment_of(asked.installed))
        program = f"{asked.installed}/bin/photofinish"
    else:
        program = asked.program or shutil.which("photofinish") or sys.exit("error: photofinish is not in PATH")
    steps = read_plan(asked.plan.read_text())
    sys.exit(0 if follow(steps, program, asked.results_dir, asked.minutes, environment) else 1)


def keep_code(data, capability):
    """Overwrites machine code for other GPUs in a library: zeros compress to nothing. The code that runs is untouched.

    A container, as `cuobjdump` reads it, is a header (u32 magic, u16 version, u16 own size, u64 size of what follows),
    then entries with a header each (u16 kind, u16 version, u32 own size, u64 size of contents, …, u32 generation at
    byte 28). Kind 2 is machine code."""
    at = data.find(b"\x50\xed\x55\xba")
    while at >= 0:
        entries, end = container(data, at)
        if any(kind == 2 and generation == capability for kind, generation, _, _ in entries):
            for kind, generation, begin, stop in entries:
                if (kind, generation) != (2, capability):
                    data[begin:stop] = bytes(stop - begin)
        at = data.find(b"\x50\xed\x55\xba", end)


def container(data, start):
    """The entries of the container at `start`, and its end; none of a broken one."""
    nothing = [], start + 4
    if start + 16 > len(data):
        return nothing
    version, own, size = struct.unpack_from("<HHQ", data, start + 4)
    entries, at, end = [], start + own, start + own + size
    if version != 1 or end > len(data):
        return nothing
    while at < end:
        if at + 32 > end:
            return nothing
        kind, _, header, contents = struct.unpack_from("<HHIQ", data, at)
        begin, stop = at + header, at + header + contents
        if stop <= at or stop > end:
            return nothing
        entries.append((kind, struct.unpack_from("<I", data, at + 28)[0], begin, stop))
        at = stop
    return entries, end


def pack(asked):
    """Builds everything and writes the pieces, their checksums and run.sh to a directory."""
    checkout = HERE.parents[1]
    capability = int(asked.capability.replace(".", ""))
    own = {"CARGO_TARGET_DIR": "target/dist/gpu", "RUSTFLAGS": RUSTFLAGS, "PHOTOFINISH_RELOCATABLE": "1"}
    environment = os.environ | own | {"CUDA_COMPUTE_CAP": str(capability)}

    def xtask(*words, **more):
        done = subprocess.run(["cargo", "xtask", *words], cwd=checkout, check=True, stdout=subprocess.PIPE, **more)
        return done.stdout.decode().splitlines()

    # Provides the libraries, too.
    xtask("build", "--device", "cuda", env=environment)
    # Of the workers for a CPU, the one that needs the least to be built.
    archive = xtask("dist", "--frameworks", "ort")[0]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["tar", "-xzf", archive, "-C", scratch], check=True)
        root = next(pathlib.Path(scratch).iterdir())
        workers = root / "share/photofinish/workers"
        shutil.copytree(checkout / "target/dist/gpu/release/cuda", workers / "cuda")
        library = next(CACHE.glob("cuda-*/onnxruntime/libonnxruntime.so*"))
        (root / "lib/onnxruntime").mkdir(parents=True)
        for file in library.parent.iterdir():
            data = bytearray(file.read_bytes())
            keep_code(data, capability)
            (root / "lib/onnxruntime" / file.name).write_bytes(data)
        programs = [root / "bin/photofinish", *workers.glob("*"), *workers.glob("cuda/*")]
        subprocess.run(["strip", *[path for path in programs if path.is_file()]], check=True)
        for name in ["gpu_run.py", "plan.txt"]:
            shutil.copy(HERE / name, root / name)
        tar = ["tar", "-cJf", f"{scratch}/all.tar.xz", "-C", root, "."]
        subprocess.run(tar, check=True, env=os.environ | {"XZ_OPT": "-T0"})
        cut_up(pathlib.Path(scratch, "all.tar.xz").read_bytes(), asked.directory, asked.piece * 1_000_000)


def cut_up(data, directory, size):
    directory.mkdir(parents=True, exist_ok=True)
    sums = ""
    for number, begin in enumerate(range(0, len(data), size)):
        piece = data[begin : begin + size]
        (directory / f"piece-{number:02}").write_bytes(piece)
        sums += f"{hashlib.sha256(piece).hexdigest()}  piece-{number:02}\n"
    (directory / "SHA256SUMS").write_text(sums)
    (directory / "run.sh").write_text(RUN)
    print(f"there: sh {directory}/run.sh --minutes 9 --results-dir DIR")


RUN = """#!/bin/sh
# Unpacks the pieces beside this file, once, and runs `gpu_run.py run` with these arguments.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=${PHOTOFINISH_ROOT:-$here/photofinish}
if [ ! -f "$root/unpacked" ]; then
    (cd "$here" && sha256sum --check --quiet SHA256SUMS)
    mkdir -p "$root"
    cat "$here"/piece-* | tar -xJ -C "$root"
    touch "$root/unpacked"
fi
exec python3 "$root/gpu_run.py" run --installed "$root" "$@"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="follow the plan")
    runs.set_defaults(do=run)
    runs.add_argument("--minutes", type=float, default=9, help="a step that no longer fits waits for the next call")
    runs.add_argument("--plan", type=pathlib.Path, default=HERE / "plan.txt")
    runs.add_argument("--results-dir", type=pathlib.Path, default=pathlib.Path("results/gpu-run"))
    runs.add_argument("--program", help="instead of the photofinish in PATH")
    runs.add_argument("--installed", help=argparse.SUPPRESS)
    packs = commands.add_parser("pack", help="write it for a machine without network or cargo")
    packs.set_defaults(do=pack)
    packs.add_argument("directory", type=pathlib.Path)
    packs.add_argument("--piece", type=int, default=60, metavar="MB", help="size of a piece at most")
    packs.add_argument("--capability", default="9.0", help="of the GPU: 9.0 of an H100 or H200, 8.0 of an A100")
    asked = parser.parse_args()
    asked.do(asked)


if __name__ == "__main__":
    main()
