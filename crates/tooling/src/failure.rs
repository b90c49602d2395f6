//! Exit codes: 0 done, 1 something failed, 2 bad usage or input, 130 interrupted.

use std::process::ExitCode;

/// The caller can correct this one: wrong argument, wrong variable, missing program. Exit code 2.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// The user interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl Interrupted {
    /// As in shells: 128 + SIGINT.
    pub const CODE: u8 = 130;
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(match error {
        error if is_bad_input(error) => 2,
        error if error.downcast_ref::<Interrupted>().is_some() => Interrupted::CODE,
        _ => 1,
    })
}

pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.downcast_ref::<BadInput>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn bad_input_stays_bad_input_under_context() {
        let error = Err::<(), _>(BadInput("x".into())).context("while reading").unwrap_err();
        assert!(is_bad_input(&error));
        assert!(!is_bad_input(&anyhow::anyhow!("x")));
    }
}
