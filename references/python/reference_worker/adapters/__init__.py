"""One module for each framework, with a class `Adapter`: the counterpart of the trait `InferenceEngine`.

An adapter drives its framework as that framework's own documentation would for speed. It contains no timing.
"""

from ..bundle import unsupported


class Base:
    """What every adapter is asked, in this order: `configure`, `runtime`, `weights_file`, the constructor (timed as
    load), then any number of times `begin` followed by `append`s, of which `begin` and `append` are timed. Of a model
    that hears, one `listen` is between them and is timed, too. Of an ONNX file these are `feed`, `run_graph` and
    `graph_outputs`, of which `run_graph` is timed."""

    FRAMEWORK: str
    #: Names of the variant's options that the adapter knows.
    OPTIONS: tuple = ()
    #: Whether `hidden_states` answers; where keeping them costs speed, an adapter keeps them only if the settings ask.
    HIDDEN_STATES = False
    #: Whether a model may attend both ways (`causal` of its description is false). A sequence is then appended in one piece
    #: after `begin`, nothing is kept from one to the next, and `array` answers; numpy is there.
    BOTH_WAYS = False
    #: Whether it turns texts into vectors or scores: `encode` and `rows` answer for a model that is an encoder.
    ENCODES = False
    #: Whether it computes models that hear: `listen` answers.
    HEARS = False
    #: Whether it runs an ONNX file as it is (`graph` of the model's description): `feed`, `run_graph` and
    #: `graph_outputs` answer for a model that is one; numpy is there.
    GRAPHS = False
    #: Names of what it computes beyond a plain layer (`features` of a model's description); None where the framework
    #: has models of its own and reads the configuration itself.
    FEATURES: tuple | None = ()
    #: The same of an encoder.
    ENCODER_FEATURES: tuple | None = ()
    #: Whether it computes on GPUs of NVIDIA's, too.
    GPU = False
    #: Whether it divides the weights over as many devices as `shards` of the settings says.
    SHARDS = False

    @staticmethod
    def configure(settings):
        """Sets what the framework must know before it is initialised. Without a job, for `--hello`, it is not asked."""

    @staticmethod
    def runtime():
        """Initialises the framework: `binding`, `library`, `library_path`, `cpu_capability`."""
        raise NotImplementedError

    @classmethod
    def weights_file(cls, bundle, settings):
        """The file that loading will read; what cannot read a bundle derives its file here, once. Not timed."""
        return bundle.weights_path(settings["precision"])

    def __init__(self, bundle, settings, weights_file):
        raise NotImplementedError

    def in_effect(self):
        """What is in effect, observed: the fields of the event `loaded`."""
        raise NotImplementedError

    def begin(self, batch, capacity):
        """Forgets all sequences and makes room for `batch` new ones of `capacity` tokens each."""
        raise NotImplementedError

    def listen(self, frames):
        """Encodes the audio of the one sequence, to whose vectors every later `append` attends: a log-mel spectrogram,
        `[bands, frames]` row-major, as an array of f32. Complete on return."""
        raise NotImplementedError

    def append(self, tokens, every):
        """Appends `[batch][n]` tokens; the logits, complete on the host, of every position or of the last. They are read
        before the next `begin` or `append`, which may overwrite them."""
        raise NotImplementedError

    def argmax(self, logits):
        """The most likely token of each sequence, from logits of the last position."""
        raise NotImplementedError

    def array(self, logits):
        """The logits as numpy's f32 `[batch, positions, vocabulary]`, without a copy where they lie on the host as such."""
        raise NotImplementedError

    def values(self, logits):
        """The logits as f32 bytes, `[batch, positions, vocabulary]` row-major. Not timed."""
        raise NotImplementedError

    def encode(self, texts, types, embed):
        """The vectors of `[text][tokens]`, complete on the host, in the framework's own form, and the number of positions
        that were computed, padding included. `types` likewise, or None; `embed` has `pooling` (cls, mean, max or last) and
        `normalise`, or is None: then the model's head scores each text, or each of its tokens."""
        raise NotImplementedError

    def rows(self, vectors):
        """Those vectors as lists of numbers, one a text: the scores of all its tokens where tokens have scores. Not timed."""
        raise NotImplementedError

    def feed(self, inputs):
        """Takes the inputs of the runs that follow, and puts them where the framework reads them: pairs of a name and a
        numpy array, one for each of the graph's inputs and in that order. Not timed: programs hold their inputs there."""
        raise NotImplementedError

    def run_graph(self):
        """Computes all outputs of the graph, complete on the host."""
        raise NotImplementedError

    def graph_outputs(self):
        """What the last run gave, in the order of the graph's outputs: pairs of a name and a numpy array, of the type
        that the graph says. Not timed."""
        raise NotImplementedError

    def hidden_states(self):
        """Hidden states of the last `append`, from the embeddings to the last layer's after the final norm: f32 bytes,
        `[batch, positions, hidden]` each. Not timed."""
        raise NotImplementedError

    @classmethod
    def profiled(cls, settings):
        """The settings to load with if the run is to be profiled: for what the framework's profiler must know before."""
        return settings

    def begin_profile(self, directory):
        """Starts the framework's own profiler, once, after the load; it may put files into `directory`. No timed run is
        profiled. What has no profiler says so."""
        raise unsupported(f"Photofinish reads no profiler of {self.FRAMEWORK}, so its own events are not here.")

    def end_profile(self):
        """Ends the profiler. `profiler` (its name), `clock` (`CLOCK_REALTIME`, `CLOCK_MONOTONIC` or `none`), `events[]`
        (`name`, `part` of the model or None, `thread`, `start_ns`, `duration_ns`, `details`) and `notes[]`, sentences on
        what it cannot tell. Without a clock, `step` stands for `start_ns`: which `append` since `begin_profile`, from 0.
        Parts are those of `engine::ProfileEvent`: `layer 3 attention`, `head`, ..."""
        raise NotImplementedError

    def gpu_allocated(self):
        """Bytes that the framework's own allocator has handed out on the GPUs, `in_use_bytes` and `peak_bytes` so far;
        None where it does not tell, and on a CPU. Not timed."""
        return None

    def compiled(self):
        """The shapes that were compiled for until now, one short phrase each; None where that is not told. Not timed."""
        return None
