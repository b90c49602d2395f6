"""Reading side of a prepared model, and what is derived from one."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

FORMAT = 1
PRECISIONS = ("f32", "bf16", "f16", "int8", "int4", "nf4", "file")
# The model of a bundle that is an ONNX file, in place of weights.
GRAPH_FILE = "graph.onnx"


class WorkerError(Exception):
    """Why a worker ends: told to the driver as a `failed` event, and to people on stderr."""

    def __init__(self, reason, kind="failed"):
        super().__init__(reason)
        self.kind = kind


def unsupported(reason):
    """The framework cannot do what was asked."""
    return WorkerError(f"unsupported: {reason}", "unsupported")


def bad_input(reason):
    """What was asked makes no sense for this model."""
    return WorkerError(reason, "input")


class Bundle:
    """`model` is the job's description of the model (docs/reference/protocol.md)."""

    def __init__(self, directory, model=None):
        self.directory, self.model = Path(directory), model
        try:
            manifest = json.loads((self.directory / "manifest.json").read_text())
            self.config = json.loads((self.directory / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise bad_input(f"{directory} is not a prepared model: {error}") from None
        if manifest["format"] != FORMAT:
            raise bad_input(f"{directory} has format {manifest['format']}, this worker reads format {FORMAT}")
        self.name, self.files = manifest["name"], manifest["files"]
        described = model or {}
        # What an ONNX file is given and gives; None of other models. It has neither tokens nor positions.
        self.graph = (described.get("graph") or self.config["graph"]) if GRAPH_FILE in self.files else None
        self.vocabulary, self.context = (0, 0) if self.graph else self._sizes(described)
        # Whether a position sees itself and those before it alone, and what stands for tokens of masked diffusion.
        self.causal = described.get("causal", True)
        self.mask_token = described.get("mask_token")
        # What an encoder has and a decoder has not; None of a decoder.
        self.encoder = described.get("encoder")
        # The sizes of what a model hears; None of one that does not.
        self.audio = described.get("audio")
        # What a plain layer has not, by name, in words.
        self.features = described.get("features", {})
        layers = [] if self.graph else described.get("layers", [])
        self.window = next((layer["window"] for layer in layers if layer.get("window")), None)

    def _sizes(self, described):
        """Tokens of the vocabulary, and positions."""
        positions = described.get("max_positions") or self.config.get("max_position_embeddings")
        return described.get("vocab_size") or self.config["vocab_size"], positions or self.config["n_positions"]

    def weights_path(self, precision):
        if self.graph and precision != "f32":
            raise bad_input("an ONNX file runs in the precision that it is stored in, which goes by f32")
        name = GRAPH_FILE if self.graph else f"{precision}.safetensors"
        if name not in self.files:
            held = [held for held in PRECISIONS if f"{held}.safetensors" in self.files]
            raise bad_input(f"{self.directory} holds no {precision} weights; it holds {', '.join(held)}")
        return self.directory / name

    def verify(self, name):
        """The sha256 of a file, which must be the manifest's."""
        found, expected = sha256_of(self.directory / name), self.files[name]["sha256"]
        if found != expected:
            raise bad_input(
                f"{self.directory / name} has sha256 {found}, but the bundle's manifest says {expected}: "
                f"delete {self.directory} and prepare the model again"
            )
        return found

    def address(self, precision):
        """Names what is derived from the weights at `precision` and the configuration."""
        starts = [self.files[name]["sha256"][:12] for name in (f"{precision}.safetensors", "config.json")]
        return "-".join(starts)


def mlp_of(model):
    """The MLP that all layers of a model have alike (docs/reference/protocol.md)."""
    return model["layers"][0]["feed"]["mlp"]


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def identity_of(path):
    """What tells a file from every other, and from itself after a change; None where it is not told."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return {
        "device": found.st_dev, "inode": found.st_ino, "bytes": found.st_size, "modified_ns": found.st_mtime_ns,
    }


def references_directory():
    """Where set-up puts what references need, and what is derived for them is kept."""
    directory = os.environ.get("PHOTOFINISH_REFERENCES")
    if not directory:
        raise bad_input("PHOTOFINISH_REFERENCES is not set: name it in configs/engines")
    return Path(directory)


def derive(directory, weights, make):
    """Fills `directory` by `make(staging directory)` unless it is there whole, and returns its file `weights`.

    `make` returns the record of what the file was derived from, without the file's own hash.
    """
    record = directory / f"{weights}.json"
    if not record.is_file():
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".derive-", dir=directory.parent))
        try:
            written = make(staging)
            written["sha256"] = sha256_of(staging / weights)
            (staging / f"{weights}.json").write_text(json.dumps(written, indent=2))
            shutil.rmtree(directory, ignore_errors=True)
            staging.rename(directory)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return directory / weights


def run(command, environment=None):
    """Runs a tool to its end; its output goes to stderr, its last line is the cause of a failure."""
    import subprocess

    done = subprocess.run(command, env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    sys.stderr.write(done.stdout)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0:
        cause = lines[-1] if lines else f"exit code {done.returncode}"
        raise WorkerError(f"{Path(command[0]).name} failed: {cause}")
    return lines[-1] if lines else ""
