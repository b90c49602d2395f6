//! candle's errors.

use engine::EngineError;

/// Keeps the first line, the cause. candle appends a backtrace if the environment requests one.
pub(crate) fn framework(error: candle_core::Error) -> EngineError {
    EngineError::Framework(error.to_string().lines().next().unwrap_or_default().to_owned())
}
