//! An engine's capability for each kind of work, as a trait; that for texts has a file of its own.

use bundle::{Dtype, Graph};
use protocol::{HandOver, Padding};

use crate::engine::{EngineError, Result};

// The capability to continue sequences of tokens.

/// Which logits [`Decode::append`] computes and returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Logits of the last appended position alone: the output head runs over one row per sequence.
    Last,
    /// Logits of every appended position.
    All,
}

/// Hidden states of the last `append`, or of the last texts.
#[derive(Debug, Clone, PartialEq)]
pub struct HiddenStates {
    /// `layers[0]` are the embeddings, `layers[i]` the residual stream after layer i; the last one
    /// is taken after the final norm, as Hugging Face transformers has it. Each `[batch, positions,
    /// hidden]`, of texts `[tokens, hidden]`, row-major f32.
    pub layers: Vec<Vec<f32>>,
}

impl HiddenStates {
    /// The states that were kept, or why there are none.
    pub fn kept(layers: Option<Vec<Vec<f32>>>) -> Result<HiddenStates> {
        let why = "hidden states are kept only where the settings at load ask for them";
        layers.map(|layers| HiddenStates { layers }).ok_or_else(|| EngineError::Unsupported(why.into()))
    }
}

/// A model that continues sequences: any number of times [`begin`](Self::begin), each followed by
/// [`append`](Self::append)s.
pub trait Decode {
    /// Forgets all earlier sequences and prepares `batch` new ones, with a KV cache for `capacity` tokens
    /// each. Buffers of an equal earlier `begin` may be reused. Everything that depends on the capacity
    /// (cache, rotary tables) is allocated here, never in `append`. Timed as part of the first token, unless
    /// untimed tokens come first.
    ///
    /// Errors with [`EngineError::Input`] if `capacity` exceeds the model's context
    /// ([`bundle::ModelConfig::max_positions`]), or either is 0: see [`check_begin`](crate::engine::check_begin).
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()>;

    /// Says that the logits of the sequences that have just begun are compared, and none of their times counts. A server
    /// is asked for log-probabilities then.
    fn show(&mut self) {}

    /// Encodes the audio of the one sequence, after [`begin`](Self::begin) and before the first append: `frames` is a
    /// log-mel spectrogram, `[bands, frames]` ([`bundle::Audio`]), and every later append attends to its vectors.
    /// Keys and values of every layer's attention to it are computed here, once. Complete on return; timed.
    ///
    /// Errors with [`EngineError::Input`] as [`check_listen`](crate::engine::check_listen) does.
    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let _ = frames;
        Err(EngineError::Unsupported("this framework is driven here with models that do not hear".into()))
    }

    /// Appends `tokens`, `[batch, n]` row-major with n ≥ 1, to the sequences and returns logits as f32,
    /// row-major: `[batch, 1, vocabulary]` for [`Want::Last`], `[batch, n, vocabulary]` for [`Want::All`].
    /// Several appends give the same as one long one.
    ///
    /// The result is complete on return: an engine on a GPU has synchronised and copied. The slice borrows
    /// the engine's own buffer where that saves a copy. This call is timed as prefill (n > 1) and decode (n =
    /// 1).
    ///
    /// Errors with [`EngineError::Input`] for a token outside the vocabulary, or past the
    /// capacity: see [`check_append`](crate::engine::check_append).
    ///
    /// A model that attends both ways ([`bundle::ModelConfig::causal`] is false) takes a sequence in one
    /// piece and computes a pass over all positions. Nothing is kept from one pass to the next.
    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]>;

    /// Appends prompts of different lengths, right after [`begin`](Self::begin): `tokens` has them one after
    /// another, `lengths` their numbers of tokens. Returns the logits of the last token of each, `[batch, 1,
    /// vocabulary]`: the same as each prompt gives alone. Every later [`append`](Self::append) continues
    /// after each sequence's own tokens. The capacity is that of the longest.
    ///
    /// Errors with [`EngineError::Input`] as [`check_append_each`](crate::engine::check_append_each) does, and with
    /// [`EngineError::Unsupported`] if all sequences of a batch must have one length.
    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        let _ = (tokens, lengths);
        Err(EngineError::Unsupported(
            "this framework is driven here with prompts of one length in a batch: leave --mixed out, or serve callers \
             one by one"
                .into(),
        ))
    }

    /// How the last [`append_each`](Self::append_each) padded; `None` if there was none since [`begin`](Self::begin).
    /// Not timed.
    fn padding(&self) -> Option<Padding> {
        None
    }

    /// Size of the buffers of keys and values of the present sequences, as allocated, including unused room
    /// and padding; `None` if the engine cannot tell, or has no sequences. Not timed.
    ///
    /// Read from the buffers, not computed from the model's shapes: it is compared with those.
    fn kv_cache_bytes(&self) -> Option<u64> {
        None
    }

    /// Hands keys and values of the present sequences to the engine that computes steps of one token, if
    /// another one read the prompt. `append` would do it itself: it is called before the first step so that
    /// it can be timed separately, by the worker. `None` if one engine computes everything.
    fn hand_over(&mut self) -> Result<Option<HandOver>> {
        Ok(None)
    }

    /// Why a hybrid copies keys and values of the present sequences; `None` if both engines keep them in the same memory,
    /// and if there are no sequences yet.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// Hidden states of the last `append`, if [`Settings::hidden_states`](crate::engine::Settings::hidden_states) was set at load.
    fn hidden_states(&mut self) -> Result<HiddenStates> {
        Err(EngineError::Unsupported("this framework gives no access to hidden states".into()))
    }
}

// The capability to run an ONNX file: named tensors to named tensors.

/// A tensor in host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The numbers, little-endian, row-major; a `bool` is 0 or 1.
    pub data: Vec<u8>,
}

/// Runs the loaded graph.
pub trait Run {
    fn graph(&self) -> &Graph;

    /// Takes the inputs of the following runs, one for each of the graph's and in that order: puts them where
    /// the framework reads them. Not timed: programs keep their inputs in such tensors.
    fn feed(&mut self, inputs: &[Tensor]) -> Result<()>;

    /// Computes all outputs of the graph. Complete on return, in host memory.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] with the operator's name if the framework only now finds that it does not
    /// implement it.
    fn run(&mut self) -> Result<()>;

    /// The outputs of the last run, in the order of the graph's outputs. Not timed.
    fn outputs(&mut self) -> Result<Vec<Tensor>>;
}

/// Runs framework code that reads an untrusted file. A panic of the framework becomes an error; its message
/// goes to stderr.
pub fn without_panic<T>(framework: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or(payload.downcast_ref::<&str>().copied()).unwrap_or("it gave no reason");
        Err(EngineError::Framework(format!("{framework} gave up on this file: {}", said.replace('\n', " "))))
    })
}

impl Tensor {
    pub fn elements(shape: &[usize]) -> usize {
        shape.iter().product()
    }
}
