//! Turns a request into a plan.
//!
//! A [`Request`] comes from a person, a suite, a study or a record of the history: plain data, without a
//! parser. A [`Draft`] is a request that was checked as far as possible without a model. A [`Plan`] is
//! complete: contenders, prompts as token ids, rounds. Making either reads no file, no clock and no machine.

pub mod ab;
pub mod apart;
mod arms;
pub mod asked;
pub mod axes;
mod catch_panic;
mod cells;
pub mod chat;
mod checks;
mod columns;
mod draft;
mod encode_asked;
mod engines;
mod failure;
mod graph_asked;
mod mistakes;
mod optimised;
mod plan;
pub mod prompts;
mod quality;
mod request;
mod schedule;
mod serving_asked;
mod study;
pub mod sweep;
mod switch;
pub mod work;
mod workers;

pub use arms::{Arm, StudySettings, ThreadsAsked};
pub use axes::{Axis, Setting, Settings};
pub use configs::KernelCache;
pub use draft::{Draft, Given, check};
pub use encode_asked::{EncodeAsked, LengthsAsked, TaskAsked};
pub use engines::Engines;
pub use failure::{Failure, Result};
pub use graph_asked::{Dims, GraphAsked, InputAsked, NamedInput};
pub use plan::{Contender, Plan, Rounds, Schedule};
pub use prompts::Prompt;
pub use quality::{QualityData, Retrieval};
pub use request::{
    CacheAsked, DecodeAsked, DenoiseAsked, HugePages, KvPrecision, PromptSource, Request, RoundsAsked,
    SamplingAsked, ScheduleAsked, SliceAsked,
};
pub use serving_asked::ServingAsked;
pub use study::{CellPlan, StudyKind, StudyPlan, StudyRequest, StudyView};
pub use switch::Switch;
pub use work::{Prompted, Work, WorkKind};
