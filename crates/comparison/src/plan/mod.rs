//! Turns a request into a plan.
//!
//! A [`Request`] comes from a person, a suite, a study or a record of the history: plain data, without a
//! parser. A [`Draft`] is a request that was checked as far as possible without a model. A [`Plan`] is
//! complete: contenders, prompts as token ids, rounds. Making either reads no file, no clock and no machine.

pub mod ab;
pub mod axes;

pub mod chat;

mod draft;
pub mod flags;

mod optimised;
mod plan;
pub mod prompts;

mod request;
pub mod serving;

pub mod sweep;
#[cfg(test)]
mod tests;

pub mod work;
pub mod workers;

pub use axes::{Arm, StudySettings, ThreadsAsked};
pub use axes::{Axis, Setting, Settings};
pub use configs::KernelCache;
pub use draft::Engines;
pub use draft::{Draft, Failure, Given, Prose, QualityData, Result, Retrieval, check};
pub use optimised::Switch;
pub use plan::{CellPlan, StudyKind, StudyPlan, StudyRequest, StudyView};
pub use prompts::Prompt;
pub use request::{
    CacheAsked, DecodeAsked, HugePages, KvPrecision, PromptSource, Request, RoundsAsked, SamplingAsked,
    ScheduleAsked, SliceAsked, USUAL_BUDGET_MIN,
};
pub use serving::ServingAsked;
pub use work::denoise::DenoiseAsked;
pub use work::encode::{EncodeAsked, LengthsAsked, TaskAsked, VectorsAsked};
pub use work::graph::{Artefact, Audio, Dims, GraphAsked, InputAsked, NamedInput, State};
pub use work::{Prompted, Work, WorkKind};

pub use self::plan::{Contender, Plan, Rounds, Schedule, layout};
