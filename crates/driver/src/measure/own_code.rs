//! Whose arithmetic each engine computes (rule R19): before the first round a process of each runs under perf. Nothing of
//! it is timed.

use std::path::Path;

use comparison::facts::evidence::Fact;
use comparison::plan::{self, Contender, Failure, Result};
use configs::OwnCode;

use crate::measure::crew::Crew;
use crate::measure::perf::{self, Phase, Rule};
use crate::measure::process::now;
use crate::measure::session::Session;

/// Tokens of the prompt and new tokens of a request that is mostly one phase. Of other work than continuing prompts, the
/// smallest request is taken for the first phase and the largest for the second.
const LENGTHS: [(Phase, (usize, usize)); 2] = [(Phase::Decode, (16, 32)), (Phase::Prefill, (256, 1))];

/// Narrower models take less time to compute than to dispatch, and shares of that say nothing.
const LEAST_WIDTH: usize = 256;

/// Share of the limit after which no other contender is looked at.
const OWN_CODE: f64 = 0.4;

impl Session<'_> {
    /// `rules`: the file of the rules that say which symbols are arithmetic of an engine. A first look does without, and so
    /// does a contender for which there is no time.
    pub(crate) fn observe_own_code(&mut self, rules: &Path) {
        let plan = self.crew.plan;
        let is_looked_at = plan.work.generate().is_some() || plan.work.encode().is_some();
        if !is_looked_at || plan.is_on_gpu() || plan.request.quick {
            return;
        }
        if self.crew.bundle.config().hidden_size < LEAST_WIDTH {
            return;
        }
        let until = self.limit.share(OWN_CODE);
        for (index, contender) in plan.contenders.iter().enumerate() {
            // A reference is the framework's own code, or is compared as what it is.
            if contender.engine.reference || self.recorder.is_absent(contender) {
                continue;
            }
            let Ok(rules) = perf::rules(rules, &contender.engine.framework) else { continue };
            if !perf::knows_own_code(&rules) {
                continue;
            }
            if self.is_over() || until.is_some_and(|until| now() > until) {
                break;
            }
            let framework = contender.label.clone();
            self.crew
                .progress
                .message(&format!("{framework}: whose arithmetic it is, in an untimed process"));
            let observed = self.crew.own_code(index, &rules).map_err(|failure| failure.to_string());
            self.recorder.record(Fact::OwnCode { framework, observed });
        }
    }
}

impl Crew<'_> {
    fn own_code(&self, index: usize, rules: &[Rule]) -> Result<OwnCode> {
        perf::require_perf()?;
        let contender: &Contender = &self.plan.contenders[index];
        let work = &self.plan.work;
        if work.generate().is_some() {
            for (_, (prompt, new)) in LENGTHS {
                plan::work::check_context(prompt, new, self.bundle.config())?;
            }
        }
        let job = |phase: Phase| {
            if work.generate().is_some() {
                let lengths =
                    LENGTHS.iter().find(|(of, _)| *of == phase).map_or((1, 1), |(_, lengths)| *lengths);
                return (self.job(contender, perf::task(self.vocabulary(), lengths)), 0, phase.name());
            }
            let (cases, tokens) = (0..work.cases(), |case: &usize| work.case_tokens(*case));
            let (case, named) = match phase {
                Phase::Decode => (cases.min_by_key(tokens), "smallest request"),
                Phase::Prefill => (cases.max_by_key(tokens), "largest request"),
            };
            (self.job(contender, perf::measured(work.of_reference())), case.unwrap_or(0), named)
        };
        perf::own_code(&contender.label, &self.workers[index], job, rules).map_err(|failure| match failure {
            Failure::Interrupted => Failure::failed("it was interrupted"),
            other => other,
        })
    }
}
