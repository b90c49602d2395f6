//! A scripted engine: its latency, memory, drift and faults are known, so that everything around it can be
//! tested. It reads a real bundle's configuration but none of its weights: a run of an ONNX file gives four
//! numbers for each of its outputs, which follow from its inputs.
//!
//! The options of a variant are the fields of `script::Options`.

mod output;
mod script;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub use output::through;
pub use script::{Noise, ProcessNoise};
use worker::engine::{
    Allocated, Bench, Bundle, Decode, Encode, EncodeTask, EngineError, Foreigns, HiddenStates, InEffect,
    InferenceEngine, KvCachePolicy, Padding, Profile, Result, Run, Runtime, Settings, Side, Texts, Want,
    check_append, check_append_each, check_begin, check_listen, check_listened,
};

use crate::output::{PlayedBench, PlayedGpu, Profiler};
use crate::script::{Fault, Part, Script};

pub struct Mock {
    config: bundle::ModelConfig,
    settings: Settings,
    script: Script,
    /// Held so that memory is really resident.
    memory_step: Vec<u8>,
    /// Keys and values, which nothing is computed with.
    kv_cache: Vec<f32>,
    busy: BusyThreads,
    gpu: Option<PlayedGpu>,
    profiler: Profiler,
    batch: usize,
    capacity: usize,
    /// `[batch]` running hashes of the sequences: the whole state of this "model".
    states: Vec<u64>,
    filled: usize,
    /// Whether prompts of different lengths began the sequences.
    is_padded: bool,
    /// The hash of the audio, of a model that hears, and whether it was heard since `begin`.
    heard: Option<u64>,
    has_listened: bool,
    appends: usize,
    has_stepped: bool,
    logits: Vec<f32>,
    /// The state at every position of the last `append`.
    latest: Vec<u64>,
    /// Hashes of the rows of the latest inputs of the ONNX file, and those of its last run.
    fed: Vec<u64>,
    /// Whether each row of the inputs is computed separately.
    has_rows: bool,
    ran: Option<Vec<u64>>,
}

impl Mock {
    fn fault_is_due(&self, fault: Fault) -> bool {
        self.script.fault == Some(fault) && self.appends == self.script.fault_at
    }

    /// The extra time of the first call, and of the first step.
    fn compiling(&mut self, is_step: bool) -> Duration {
        let mut extra = if self.appends == 1 { self.script.cold_ms } else { Duration::ZERO };
        if is_step && !self.has_stepped {
            self.has_stepped = true;
            extra += self.script.cold_step_ms;
        }
        extra
    }

    fn misbehave(&self) -> Result<()> {
        if self.fault_is_due(Fault::Crash) {
            eprintln!("mock: this crash was asked for");
            std::process::abort();
        }
        if self.fault_is_due(Fault::Panic) {
            panic!("this panic was asked for");
        }
        if self.fault_is_due(Fault::Hang) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        if self.fault_is_due(Fault::Memory) {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                held.push(Vec::with_capacity(1 << 30));
                std::hint::black_box(&held);
            }
        }
        if self.fault_is_due(Fault::Error) {
            return Err(EngineError::Framework("this error was asked for".into()));
        }
        Ok(())
    }
}

impl InferenceEngine for Mock {
    const FRAMEWORK: &'static str = "mock";

    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime> {
        Ok(Runtime {
            binding: format!("engine-mock {}", env!("CARGO_PKG_VERSION")),
            library: "mock".into(),
            library_path: None::<PathBuf>,
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self> {
        let script = Script::read(settings)?;
        let gpu = PlayedGpu::open(&script, settings)?;
        if let Some(reason) = &script.unsupported {
            return Err(EngineError::Unsupported(reason.clone()));
        }
        script.begin();
        script.wait(Part::Load, script.load_ms);
        let mock = Mock {
            config: bundle.config().clone(),
            settings: settings.clone(),
            memory_step: Vec::new(),
            kv_cache: Vec::new(),
            busy: BusyThreads::start(script.busy_threads)
                .map_err(|error| EngineError::Framework(format!("cannot start a busy thread: {error}")))?,
            gpu,
            profiler: Profiler::default(),
            script,
            batch: 0,
            capacity: 0,
            states: Vec::new(),
            filled: 0,
            is_padded: false,
            heard: None,
            has_listened: false,
            appends: 0,
            has_stepped: false,
            logits: Vec::new(),
            latest: Vec::new(),
            fed: Vec::new(),
            has_rows: false,
            ran: None,
        };
        mock.misbehave()?;
        if mock.fault_is_due(Fault::CutOff) {
            output::read_what_is_cut_off(bundle, settings.precision)?;
        }
        Ok(mock)
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            precision: self.script.claimed_precision.unwrap_or(self.settings.precision).into(),
            activations: "f32".into(),
            kv_cache_precision: self.script.claimed_cache.unwrap_or_else(|| self.settings.cache()).into(),
            kv_cache: match self.config.causal {
                true => KvCachePolicy::Preallocated,
                false => KvCachePolicy::None,
            },
            device: self.settings.device().into(),
            threads: self.settings.threads.max(1),
            jit: "none (mock)".into(),
            optimised: self.script.optimised,
            weight_storage: "none (mock)".into(),
            kernels: vec![self.script.kernel()].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn bench(settings: &Settings, bytes: usize) -> Result<Option<Box<dyn Bench>>> {
        Ok(Some(Box::new(PlayedBench::new(settings, bytes)?)))
    }

    fn gpu_allocated(&self) -> Option<Allocated> {
        self.gpu.as_ref()?.allocated()
    }

    fn begin_profile(&mut self) -> Result<()> {
        self.profiler.begin(&self.script)
    }

    fn end_profile(&mut self) -> Result<Profile> {
        self.profiler.end()
    }

    fn encode(&mut self) -> Result<&mut dyn Encode> {
        Ok(self)
    }

    fn graph(&mut self) -> Result<&mut dyn Run> {
        if self.config.graph.is_none() {
            return Err(EngineError::Unsupported("the model is no ONNX file".into()));
        }
        Ok(self)
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Ok(self)
    }
}

impl Encode for Mock {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32]> {
        texts.check(&self.config, task)?;
        self.appends += 1;
        self.misbehave()?;
        let longest = texts.longest();
        self.filled = if self.script.padded { longest * texts.lengths.len() } else { texts.tokens.len() };
        let work = self.script.prefill_token_ms * self.filled as u32;
        let step = self.script.step_time(work, self.appends);
        self.script.wait(Part::Prompt, step);
        self.logits.clear();
        self.latest.clear();
        let mut rest = texts.tokens;
        for &length in texts.lengths {
            let text;
            (text, rest) = rest.split_at(length);
            let mut state = 0xcbf2_9ce4_8422_2325;
            for &token in text {
                state = mix(state ^ u64::from(token));
                self.latest.push(state);
            }
            let padding = if self.script.unmasked { longest - length } else { 0 };
            let state = mix(state ^ padding as u64);
            let component = |place: u64| {
                let hash = mix(state ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                (hash >> 40) as f32 / (1 << 23) as f32 - 1.0
                    + if place == 0 { self.script.perturb } else { 0.0 }
            };
            let width = self.config.width(task, length) as u64;
            let vector: Vec<f32> = (0..width).map(component).collect();
            let normalise = matches!(task, EncodeTask::Embed { normalise: true, .. });
            let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            self.logits.extend(vector.iter().map(|x| if normalise { x / norm } else { *x }));
        }
        Ok(&self.logits)
    }

    fn config(&self) -> &bundle::ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.filled
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        Decode::hidden_states(self)
    }
}

impl Decode for Mock {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        check_begin(&self.config, batch, capacity)?;
        (self.batch, self.capacity, self.filled) = (batch, capacity, 0);
        (self.is_padded, self.has_listened) = (false, false);
        self.states = vec![0xcbf2_9ce4_8422_2325; batch];
        if self.script.kv_cache && self.config.causal {
            let bundle::ModelConfig { layers, kv_heads, head_dim, .. } = &self.config;
            self.kv_cache = vec![1.0; 2 * layers.len() * batch * kv_heads * head_dim * capacity];
        }
        Ok(())
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        check_listen(&self.config, frames, (self.batch, self.filled))?;
        if !self.script.heard_once || self.heard.is_none() {
            self.script.wait(Part::Prompt, self.script.prefill_token_ms);
            let heard = frames.iter().fold(1, |state, number| mix(state ^ u64::from(number.to_bits())));
            self.heard = Some(heard);
        }
        self.states = self.states.iter().map(|state| mix(state ^ self.heard.unwrap_or(0))).collect();
        self.has_listened = true;
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        let count = check_append(&self.config, tokens, self.batch, self.filled, self.capacity)?;
        check_listened(&self.config, self.has_listened)?;
        self.append_rows(tokens.chunks_exact(count), (count, want))
    }

    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        let sizes = (self.batch, self.filled, self.capacity);
        let longest = check_append_each(&self.config, (tokens, lengths), sizes)?;
        let ends = lengths.iter().scan(0, |end, &length| {
            *end += length;
            Some(*end - length..*end)
        });
        self.is_padded = true;
        self.append_rows(ends.map(|range| &tokens[range]), (longest, Want::Last))
    }

    /// A state for each sequence needs no padding but in the KV cache.
    fn padding(&self) -> Option<Padding> {
        self.is_padded.then_some(Padding { side: Side::Left, computed: 0 })
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        let bytes = size_of_val(self.kv_cache.as_slice()) as u64;
        (bytes > 0).then_some(bytes)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        if !self.script.layers {
            return Err(EngineError::Unsupported("the mock has no layers".into()));
        }
        let layer = |layer: usize| {
            let perturb = if layer >= self.script.perturb_from { self.script.perturb } else { 0.0 };
            let number = move |state: u64, index: usize| {
                let hash = mix(state ^ ((layer << 32 | index) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                (hash >> 40) as f32 / (1 << 23) as f32 - 1.0 + if index % 2 == 1 { perturb } else { 0.0 }
            };
            let width = self.config.hidden_size;
            self.latest.iter().flat_map(|&state| (0..width).map(move |index| number(state, index))).collect()
        };
        Ok(HiddenStates { layers: (0..=self.config.layers.len()).map(layer).collect() })
    }
}

impl Mock {
    /// Appends the tokens of each sequence, of which the longest has `count`.
    fn append_rows<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [u32]>,
        (count, want): (usize, Want),
    ) -> Result<&[f32]> {
        let start_ns = self.profiler.now();
        self.appends += 1;
        self.misbehave()?;
        let work =
            if count == 1 { self.script.token_ms } else { self.script.prefill_token_ms * count as u32 };
        let step = self.script.step_time(work, self.appends) + self.compiling(count == 1);
        if self.appends == self.script.memory_step_at {
            self.memory_step = vec![1; self.script.memory_step_mib << 20];
        }
        self.busy.set(true);
        let stale = self.gpu.as_ref().filter(|gpu| !gpu.synchronises()).map(|_| self.logits.clone());
        let part = if count == 1 { Part::Step } else { Part::Prompt };
        self.script.wait(part, self.gpu.as_mut().map_or(step, |gpu| gpu.launch(step)));
        self.busy.set(self.script.busy_waiting);
        self.logits.clear();
        self.latest.clear();
        for (sequence, tokens) in rows.enumerate() {
            for (position, &token) in tokens.iter().enumerate() {
                self.states[sequence] = mix(self.states[sequence] ^ u64::from(token));
                self.latest.push(self.states[sequence]);
                if want == Want::All || position + 1 == tokens.len() {
                    let state = self.states[sequence];
                    let quantised = self.settings.precision.is_quantised();
                    let of_last = if want == Want::Last { self.script.perturb_last } else { 0.0 };
                    let of_kernels = if quantised { self.script.quantised } else { 0.0 };
                    let perturb = self.script.perturb + of_last + of_kernels;
                    self.logits.extend((0..self.config.vocab_size).map(|id| {
                        let hash = mix(state ^ (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                        (hash >> 40) as f32 / (1 << 20) as f32 + if id % 2 == 1 { perturb } else { 0.0 }
                    }));
                }
            }
        }
        // The stale results of a GPU that is not waited for.
        if let Some(stale) = stale.filter(|stale| stale.len() == self.logits.len()) {
            self.logits = stale;
        }
        self.filled += count;
        self.profiler.note(start_ns, self.config.layers.len(), count);
        Ok(&self.logits)
    }
}

/// The finaliser of splitmix64: a good mixing of 64 bits (Steele, Lea & Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

// Threads that burn a core while the mock computes: an engine that uses more than its budget.

#[derive(Default)]
struct BusyThreads {
    flags: Arc<Flags>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Flags {
    busy: AtomicBool,
    done: AtomicBool,
}

impl BusyThreads {
    pub(crate) fn start(count: usize) -> std::io::Result<Self> {
        let mut busy = Self::default();
        for _ in 0..count {
            let flags = Arc::clone(&busy.flags);
            let work = move || {
                while !flags.done.load(Ordering::Relaxed) {
                    if flags.busy.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    } else {
                        std::thread::park();
                    }
                }
            };
            busy.threads.push(std::thread::Builder::new().name("busy".into()).spawn(work)?);
        }
        Ok(busy)
    }

    pub(crate) fn set(&self, busy: bool) {
        self.flags.busy.store(busy, Ordering::Relaxed);
        if busy {
            self.threads.iter().for_each(|thread| thread.thread().unpark());
        }
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.flags.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
