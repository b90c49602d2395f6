//! An engine's capability for each kind of work, as a trait.

mod decode;
mod echo;
mod encode;
mod hand_over;
mod padded;
mod run;

pub use decode::{BatchPadding, Decode, HandedOver, HiddenStates, Hybrid, Side, Want};
pub use echo::Echo;
pub use encode::{Encode, EncodeTask, Texts, by_length};
pub use hand_over::{CacheMemory, HandOver, Plane};
pub use padded::{Padded, Padding};
pub use run::{Run, Tensor, without_panic};
