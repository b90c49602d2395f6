//! Requests that each load the model again, as programs do that open a session per request.

use engine::{Bundle, InferenceEngine, Settings};
use protocol::{Call, Input, Output, ParityTask};

use super::{HandOver, Request, Workload};
use crate::clock;
use crate::error::ServeError;

/// A kind of work that loads a model for every request. The load is part of the request's time.
pub(crate) struct Anew<'a, E> {
    of: Box<dyn Workload<E> + 'a>,
    bundle: &'a Bundle,
    settings: &'a Settings,
    /// The model of the request under way, or of the last one: it is dropped when the next is loaded.
    model: Option<E>,
}

impl<'a, E: InferenceEngine> Anew<'a, E> {
    pub(crate) fn new(
        of: Box<dyn Workload<E> + 'a>,
        (bundle, settings): (&'a Bundle, &'a Settings),
    ) -> Anew<'a, E> {
        Anew { of, bundle, settings, model: None }
    }
}

impl<E: InferenceEngine> Workload<E> for Anew<'_, E> {
    fn cases(&self) -> usize {
        self.of.cases()
    }

    fn marks(&self) -> usize {
        self.of.marks()
    }

    fn check(&self, case: usize, input: &Input) -> Result<(), ServeError> {
        self.of.check(case, input)
    }

    fn begin(&mut self, _: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let before_ns = clock::now_ns();
        self.model = None;
        let model = self.model.insert(E::load(self.bundle, self.settings)?);
        let load_ns = clock::now_ns() - before_ns;
        self.of.prepare(model, case)?;
        let mut request = self.of.begin(model, case, input)?;
        request.begin_earlier(load_ns);
        Ok(request)
    }

    fn advance(&mut self, engine: &mut E, request: &mut Request, marks: usize) -> Result<(), ServeError> {
        self.of.advance(self.model.as_mut().unwrap_or(engine), request, marks)
    }

    fn output(&self) -> Output {
        self.of.output()
    }

    fn calls(&self) -> Vec<Call> {
        self.of.calls()
    }

    fn handed_over(&self) -> Option<HandOver> {
        self.of.handed_over()
    }

    fn parity(&mut self, engine: &mut E, task: &ParityTask) -> Result<(), ServeError> {
        self.of.parity(engine, task)
    }
}
