//! An engine that answers soon, its bundle, and jobs for it.

pub(crate) mod fixture;

use protocol::{Event, FailureKind, Finish, Job, Loaded, Task, Turn};
use worker::engine::{
    Bundle, Decode, Device, Foreigns, HandOver, Hybrid, InEffect, InferenceEngine, KvCachePolicy, Result,
    Runtime, Settings, Want,
};

pub(crate) const VOCABULARY: usize = 8;

/// Logits that depend on the number of earlier tokens, and on the sequence.
pub(crate) struct Counting {
    appended: usize,
    batch: usize,
    capacity: usize,
    logits: Vec<f32>,
    /// Whether it passes for two engines (the option of this name).
    is_hybrid: bool,
    /// From so many tokens on, every logit is NaN (the option `breaks`).
    breaks: usize,
}

/// Bytes that a [`Counting`] says it hands over.
pub(crate) const HANDED_OVER: u64 = 24;

/// The least time that [`Counting::append`] sleeps for each position.
pub(crate) const APPEND: std::time::Duration = std::time::Duration::from_millis(1);

impl InferenceEngine for Counting {
    const FRAMEWORK: &'static str = "counting";

    fn runtime() -> Result<Runtime> {
        let name = || "counting".to_owned();
        Ok(Runtime { binding: name(), library: name(), library_path: None, cpu_capability: None })
    }

    fn load(_: &Bundle, settings: &Settings) -> Result<Self> {
        let is_hybrid = settings.options.contains_key("hybrid");
        let breaks = settings.options.get("breaks").map_or(usize::MAX, |tokens| tokens.parse().unwrap());
        Ok(Counting { appended: 0, batch: 0, capacity: 0, logits: Vec::new(), is_hybrid, breaks })
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            precision: "f32".into(),
            activations: "f32".into(),
            kv_cache_precision: "f32".into(),
            kv_cache: KvCachePolicy::Preallocated,
            device: Device::Cpu.into(),
            threads: 1,
            jit: "none".into(),
            optimised: None,
            weight_storage: "none".into(),
            kernels: vec!["counting"].into(),
            shard_bytes: None,
            hybrid: self.is_hybrid.then(|| Hybrid {
                prefill: "one".into(),
                decode: "other".into(),
                alone: None,
            }),
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Ok(self)
    }
}

impl Decode for Counting {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        (self.batch, self.capacity, self.appended) = (batch, capacity, 0);
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        let positions = tokens.len() / self.batch;
        std::thread::sleep(APPEND * positions as u32);
        let first = if want == Want::All { 1 } else { positions };
        self.logits.clear();
        for sequence in 0..self.batch {
            for position in first..=positions {
                let (before, token) = (self.appended + position, tokens[sequence * positions + position - 1]);
                let logit = |i: usize| match before < self.breaks {
                    true => ((before * 31 + token as usize * 11 + sequence * 5 + i * 7) % 13) as f32,
                    false => f32::NAN,
                };
                self.logits.extend((0..VOCABULARY).map(logit));
            }
        }
        self.appended += positions;
        Ok(&self.logits)
    }

    fn hand_over(&mut self) -> Result<Option<HandOver>> {
        let hand_over = || {
            std::thread::sleep(APPEND);
            let (prefill_address, decode_address) = (1, 2);
            HandOver { times: 1, bytes: HANDED_OVER, prefill_address, decode_address, ..HandOver::default() }
        };
        Ok(self.is_hybrid.then(hand_over))
    }

    fn obstacle(&self) -> Option<String> {
        self.is_hybrid.then(|| "it has no room".into())
    }

    /// As if keys and values took half a byte each.
    fn kv_cache_bytes(&self) -> Option<u64> {
        Some((self.batch * self.capacity) as u64)
    }
}

/// The events of a worker of [`Counting`]. Each case of a measurement is requested once.
pub(crate) fn serve(job: &Job) -> Vec<Event> {
    serve_turns(job, 1, Finish { hash: true, parity: None })
}

/// As [`serve`], with so many requests of each case, one after another, and `finish` at the end.
pub(crate) fn serve_turns(job: &Job, times: usize, finish: Finish) -> Vec<Event> {
    let cases = match &job.task {
        Task::Measure(measure) => measure.work.cases(),
        _ => 0,
    };
    let requests = (0..times).flat_map(|_| 0..cases).map(Turn::request);
    let turns: String = requests.chain([Turn::Finish(finish)]).map(|turn| line(&turn)).collect();
    serve_lines(job, &turns)
}

/// The first event of a kind: `of` takes it out of one of that kind.
pub(crate) fn first<'a, T>(events: &'a [Event], of: impl Fn(&'a Event) -> Option<&'a T>) -> &'a T {
    events.iter().find_map(of).unwrap_or_else(|| panic!("no such event in {events:?}"))
}

pub(crate) fn loaded(events: &[Event]) -> &Loaded {
    first(events, |event| if let Event::Loaded(loaded) = event { Some(loaded) } else { None })
}

/// Why the worker refused, as wrong input.
pub(crate) fn refusal(events: &[Event]) -> &str {
    match events.last() {
        Some(Event::Failed(failed)) if failed.kind == FailureKind::Input => &failed.reason,
        other => panic!("not refused as wrong input: {other:?}"),
    }
}

pub(crate) fn line(turn: &Turn) -> String {
    serde_json::to_string(turn).unwrap() + "\n"
}

/// As [`serve`], with these lines for turns.
pub(crate) fn serve_lines(job: &Job, turns: &str) -> Vec<Event> {
    let mut output = Vec::new();
    let job = serde_json::to_string(job).unwrap();
    // How it ends is the last event.
    let _ = worker::serve::<Counting>(&job, &mut turns.as_bytes(), 0, &mut output);
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
