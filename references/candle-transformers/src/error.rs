//! What candle says went wrong.

use worker::engine::EngineError;

/// candle appends a backtrace where the environment asks for them; the cause is the first line.
pub(crate) fn framework(error: candle_core::Error) -> EngineError {
    EngineError::Framework(error.to_string().lines().next().unwrap_or_default().to_owned())
}
