//! The ways in which the program can fail. Each kind has an exit code (`docs/reference/cli.md`).

/// An error: one sentence for people, and the kind that decides the exit code.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// Bad usage or input: exit 2.
    #[error("{0}")]
    Usage(String),
    /// A framework or the machine failed: exit 1.
    #[error("{0}")]
    Failed(String),
    /// A program that explains itself on stderr (prepare, xtask) ended with this exit code.
    #[error("")]
    Spoken(u8),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Makes a usage error.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::Usage(text.into())
    }

    /// Makes a failure of a framework or of the machine.
    pub fn failed(text: impl Into<String>) -> Failure {
        Failure::Failed(text.into())
    }

    /// The exit code of this kind of failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Spoken(code) => *code,
            Failure::Interrupted => 130, // as in shells: 128 + SIGINT
        }
    }
}

impl From<configs::ConfigError> for Failure {
    fn from(error: configs::ConfigError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// A result with an error that ends the program.
pub type Result<T> = std::result::Result<T, Failure>;
