//! Defaults of a comparison.

/// Fewest rounds that can support a verdict: five pairs cannot go below p = 2/2⁵ = 0.0625 in a sign-flip
/// test, six can (2/2⁶ = 0.03125).
pub const MIN_ROUNDS: usize = 6;
/// Most rounds of an automatic comparison, unless asked otherwise: enough to distinguish a contender that is
/// 3 % slower from two others at 2 % noise between processes (`docs/evidence/calibration.md`). 24 do so in 93 % of
/// comparisons, 18 in 78 %.
pub const DEFAULT_MAX_ROUNDS: usize = 30;
/// Error rate of the whole table, and of each statement of equivalence.
pub const SIGNIFICANCE: f64 = 0.05;
/// The same where processes of a round follow one another instead of taking turns. Its rounds are not
/// independent: a state of the machine that lasts longer than a process slows one process of a round and
/// often one of the next. At 5 %, up to 6 % of simulated tables were wrong (`docs/evidence/calibration.md`
/// has the rate at this level).
pub const SEQUENTIAL_SIGNIFICANCE: f64 = 0.04;
/// Equivalence margin on the ratio: within 1/(1 + m) … 1 + m.
pub const DEFAULT_MARGIN: f64 = 0.02;
