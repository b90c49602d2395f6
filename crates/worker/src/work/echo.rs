//! The toy kind of work: each request returns the bytes of its case.

use engine::InferenceEngine;
use protocol::{EchoWork, Input, Output, ParityTask};

use super::{Request, Workload};
use crate::error::ServeError;
use crate::pace::Pace;

/// Returns bytes.
pub(crate) struct Echoing<'a> {
    work: &'a EchoWork,
    pace: Pace,
    answer: Vec<u8>,
}

impl<'a> Echoing<'a> {
    pub(crate) fn new(work: &'a EchoWork, pace: Pace) -> Echoing<'a> {
        Echoing { work, pace, answer: Vec::new() }
    }
}

impl<E: InferenceEngine> Workload<E> for Echoing<'_> {
    fn cases(&self) -> usize {
        self.work.cases.len()
    }

    fn marks(&self) -> usize {
        1
    }

    fn check(&self, _: usize, _: &Input) -> Result<(), ServeError> {
        Err(ServeError::Job("a request that returns bytes is given those of its case".into()))
    }

    fn begin(&mut self, engine: &mut E, case: usize, _: Option<Input>) -> Result<Request, ServeError> {
        let echo = engine.echo()?;
        let bytes = &self.work.cases[case];
        let mut request = Request::start(case, Vec::with_capacity(1));
        self.answer = self.pace.keep(|| echo.echo(bytes))?;
        request.mark();
        Ok(request)
    }

    fn advance(&mut self, _: &mut E, _: &mut Request, _: usize) -> Result<(), ServeError> {
        Ok(())
    }

    fn output(&self) -> Output {
        Output::Bytes(self.answer.clone())
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that return bytes have no logits".into()))
    }
}
