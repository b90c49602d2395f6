//! Fields of events that only decoders have.

use crate::shape::Kind::{OneOf, Text, Whole};
use crate::shape::{Field, may, must};

/// How keys and values are kept.
pub(crate) const CACHE: [Field; 2] = [
    must("kv_cache_precision", Text("f32")),
    must("kv_cache", OneOf(&["preallocated", "growing", "recomputed", "none"])),
];

pub(crate) const CACHE_BYTES: Field = may("kv_cache_bytes", Whole(5_376));

pub(crate) const HYBRID: &[Field] = &[
    must("prefill", Text("tch")),
    must("decode", Text("candle")),
    may("alone", Text("falls back to candle alone: it has no such attention")),
];

pub(crate) const HAND_OVER: &[Field] = &[
    must("times", Whole(3)),
    must("bytes", Whole(5_376)),
    must("ns", Whole(20_000)),
    must("prefill_address", Whole(140_000_000_000_000)),
    must("decode_address", Whole(140_000_000_065_536)),
    may("obstacle", Text("tch wants those of all layers in one piece")),
];

pub(crate) const PADDING: &[Field] = &[must("side", OneOf(&["left", "right"])), must("computed", Whole(432))];
