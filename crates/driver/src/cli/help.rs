//! The parts of the help other than flags: version, examples, exit codes.

/// Version, commit and build, for bug reports.
pub(super) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("BUILD_COMMIT"),
    ", ",
    env!("BUILD_PROFILE"),
    " build for ",
    env!("BUILD_TARGET"),
    ")"
);

pub(super) const AFTER_HELP: &str = "\
Examples:
  photofinish                                    candle, tch and ort on the default model: three minutes
  photofinish --quick --model ~/models/mine      a first look at a model of yours
  photofinish --frameworks candle,ort --time-budget 8

All flags, and exit codes: --help";

pub(super) const AFTER_LONG_HELP: &str = "\
Examples:
  photofinish                                    candle, tch and ort on the default model: three minutes
  photofinish --quick --model ~/models/mine      a first look at a model of yours
  photofinish --frameworks candle,ort --time-budget 8

Exit codes:
  0    success: everything was measured, or is not supported by its framework
  1    a framework failed or was struck, or nothing could be measured
  2    bad usage
  3    the machine was too noisy for a verdict
  4    `check` found a regression
  130  interrupted; what was measured is saved";

/// Headings of flags. Flags that the short help hides are in the long one.
pub(super) const COMPARE: &str = "What to compare";
pub(super) const EXPERT: &str = "Expert";
pub(super) const WORK: &str = "What work";
