//! Readings that only one kind of work has.

use protocol::{CacheUsage, Marks, Output};

use super::{BYTES, Check, DAY};

/// Most positions of a batch: 4,096 sequences of a million each.
const POSITIONS: u64 = 1 << 32;

impl Check {
    /// Readings of the KV cache.
    pub(super) fn cache(&mut self, cache: &CacheUsage) {
        self.at_most("kv_cache_bytes", cache.bytes, BYTES);
        if let Some(hand_over) = &cache.hand_over {
            self.at_most("hand_over.bytes", Some(hand_over.bytes), BYTES);
            self.at_most("hand_over.ns", Some(hand_over.ns), DAY);
        }
        if let Some(padding) = &cache.padding {
            self.at_most("padding.computed", Some(padding.computed), POSITIONS);
            let side = padding.side.as_str();
            let other = (!["left", "right"].contains(&side)).then_some(side);
            self.refuse("padding.side", other, format_args!("left or right"));
        }
    }

    /// The output of a request, apart from its marks.
    pub(super) fn output(&mut self, output: &Output, marks: &Marks) {
        if let Output::Steps(steps) = output {
            self.within_steps(&steps.passes_ns, marks);
        }
    }

    /// The pass of a step must end within the step.
    fn within_steps(&mut self, passes_ns: &[u64], marks: &Marks) {
        let (passes, steps) = (passes_ns.len(), marks.len());
        let of_others = (passes != steps).then(|| format!("a list of {passes}"));
        self.refuse("output.steps.passes_ns", of_others, format_args!("one for each of {steps} marks"));
        let mut before = 0;
        for (&ns, &end) in passes_ns.iter().zip(&marks.0) {
            let is_odd = ns < before || ns > end;
            self.refuse("output.steps.passes_ns", is_odd.then_some(ns), format_args!("{before} to {end}"));
            before = end;
        }
    }
}
