//! Why a job is not done.

use engine::EngineError;

/// Why a worker ends with exit code 1.
#[derive(Debug)]
pub enum ServeError {
    /// The engine failed: reported to the driver as a `failed` event, and to people on stderr.
    Engine(EngineError),
    /// The job cannot be understood; the caller may not speak this protocol.
    Job(String),
    /// An output file could not be written.
    File(String),
    /// The driver no longer listens.
    Pipe(std::io::Error),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServeError::Engine(error) => error.fmt(f),
            ServeError::Job(reason) | ServeError::File(reason) => reason.fmt(f),
            ServeError::Pipe(error) => write!(f, "cannot write to the driver: {error}"),
        }
    }
}

impl From<EngineError> for ServeError {
    fn from(error: EngineError) -> Self {
        ServeError::Engine(error)
    }
}
