pub mod contrast;

mod decision;
mod descriptive;

pub mod order;
mod paired;

mod sequential;

mod split;

pub mod steady;

pub use contrast::detectable_shift;
pub use contrast::{Contrast, Samples, contrast};
pub use decision::holm;
pub use decision::{Change, classify};
pub use decision::{DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, MIN_ROUNDS, SEQUENTIAL_SIGNIFICANCE, SIGNIFICANCE};
pub use decision::{Decision, Outcome, Series, Settings, Undecided, decide, settled};
pub use descriptive::kendall_tau;
pub use descriptive::state;
pub use descriptive::{Moments, geometric_interval, geometric_mean, median, median_interval, quantile};
pub use descriptive::{Slope, slope};
pub use order::BalancedOrder;
pub use order::{Components, Costs, Prior, blocks, components, pooled};
pub use order::{TRIMMED_REQUESTS, TRIMMED_SLICES, of_turns, trimmed_mean};
pub use paired::{EXACT_UP_TO, FLIPS, LogRatios};
pub use paired::{mann_whitney, welch};
pub use sequential::{Boundaries, Looks};
pub use split::{Cause, Split};
