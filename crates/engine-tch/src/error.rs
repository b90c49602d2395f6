//! What libtorch says went wrong.

use engine::EngineError;
use tch::TchError;

/// libtorch's errors go on with a stack trace, which says nothing to people.
pub(crate) fn framework(error: TchError) -> EngineError {
    let text = match error {
        TchError::Torch(text) => text,
        other => other.to_string(),
    };
    EngineError::Framework(text.lines().next().unwrap_or("libtorch gave no reason").to_owned())
}
