//! How the driver ends when it does not end well. Each kind has an exit code (`docs/measures.md`).

/// One sentence for people, and what it means for the exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Bad usage or input: exit 2.
    #[error("{0}")]
    Usage(String),
    /// A framework or the machine failed: exit 1.
    #[error("{0}")]
    Failed(String),
    /// A program that speaks for itself on stderr (prepare, xtask) ended with this code.
    #[error("")]
    Spoken(u8),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    pub(crate) fn failed(text: impl Into<String>) -> Failure {
        Failure::Failed(text.into())
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Spoken(code) => *code,
            Failure::Interrupted => 130, // as shells have it: 128 + SIGINT
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;
