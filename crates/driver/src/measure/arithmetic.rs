//! In what each contender multiplies: after the last round a process of each computes a model that was made to show it
//! ([`bundle::arithmetic`]). Nothing of it is timed.

use bundle::{Bundle, Precision, arithmetic};
use comparison::facts::arithmetic::{Arithmetic, ROWS, observed};
use comparison::facts::evidence::{Fact, Stage};
use comparison::facts::run::RunFailure;
use comparison::plan::Plan;
use protocol::{Answer, Case, Decode, GenerateWork, Job, KvCache, ParityTask, Task, Work};

use crate::measure::crew::Crew;
use crate::measure::places::Places;
use crate::measure::process::now;
use crate::measure::provision::{self, Wanted};
use crate::measure::session::Session;
use crate::measure::{logits, progress};

/// Kernels for quantised weights need rows of a multiple of this, or are replaced by others.
const BLOCK: usize = 256;

/// It computes nothing.
const MOCK: &str = "mock";

/// The model that shows it, in the precisions of a plan. `None` for a plan of nothing but mocks, for work other than
/// continuing prompts, whose products engines may compute in another way, for a file's own blocks, which it has not, and if it
/// cannot be made: a comparison does without.
pub(crate) fn model(plan: &Plan, compared: &Bundle, places: &Places) -> Option<Bundle> {
    plan.work.generate()?;
    plan.contenders.iter().find(|contender| contender.engine.framework != MOCK)?;
    if plan.contenders.iter().any(|contender| contender.precision == Precision::File) {
        return None;
    }
    let [(usual, _), (other, _)] = arithmetic::WIDTHS;
    let name = if compared.config().hidden_size.is_multiple_of(BLOCK) { usual } else { other };
    let wanted = Wanted {
        model: &format!("synthetic:{name}"),
        precisions: plan.contenders.iter().map(|contender| contender.precision).collect(),
        reference: false,
        device: &plan.device,
        cache: plan.request.cache(),
        sequences: (1, ROWS[ROWS.len() - 1] + 1),
    };
    match provision::model(places, &wanted, true) {
        Ok(model) => Some(model),
        Err(failure) => {
            protocol::say!("what contenders multiply in will not be observed: {failure}");
            None
        }
    }
}

impl Session<'_> {
    pub(crate) fn observe_arithmetic(&mut self, model: &Bundle) {
        let begun = now();
        for index in 0..self.crew.plan.contenders.len() {
            let contender = &self.crew.plan.contenders[index];
            let shows_none = contender.engine.framework == MOCK || contender.engine.is_server();
            if self.recorder.is_absent(contender) || shows_none {
                continue;
            }
            if self.is_over() || progress::requested() {
                break;
            }
            let observed = self.crew.arithmetic(index, model);
            let framework = contender.label.clone();
            if let Err(reason) = &observed {
                self.crew.progress.say(&format!("{framework}: what it multiplies in is not known: {reason}"));
            }
            self.recorder.record(Fact::Arithmetic { framework, observed });
        }
        self.recorder.add_time(Stage::Reference, begun);
    }
}

impl Crew<'_> {
    /// What a contender multiplies in at each number of rows.
    fn arithmetic(&self, index: usize, model: &Bundle) -> Result<Vec<Arithmetic>, String> {
        // Each position of a prompt has a token of its own.
        let prompts: Vec<Vec<u32>> = ROWS.iter().map(|&rows| (1..=rows as u32).collect()).collect();
        let case = |prompt: &Vec<u32>| Case {
            prompts: vec![prompt.clone()],
            trace: vec![vec![0]],
            ..Case::default()
        };
        let work = GenerateWork {
            cases: prompts.iter().map(case).collect(),
            new_tokens: 1,
            decode: Decode::Forced,
            kv_cache: KvCache::On,
            prefill_chunk: None,
        };
        let file = self.scratch.path().join("arithmetic.safetensors");
        let parity = ParityTask {
            steps: 1,
            file: file.display().to_string(),
            prompt_last_only: false,
            sequences: None,
        };
        let task = Task::Answer(Answer { work: Work::Generate(work), parity: Some(parity) });
        let job = Job {
            bundle: model.directory().display().to_string(),
            model: model.config().described(),
            ..self.job(&self.plan.contenders[index], task)
        };
        if let Some(failure) = RunFailure::from_ending(self.run_job(index, &job).ending) {
            return Err(failure.sentence());
        }
        let shapes = ROWS.map(|rows| [1, rows + 1, arithmetic::VOCABULARY]);
        let logits = logits::read_parity(&file, &shapes);
        let _ = std::fs::remove_file(&file);
        let logits = logits?;
        if logits.len() != prompts.len() {
            return Err("it did not give the logits asked for".into());
        }
        let width = model.config().hidden_size;
        let told = prompts.iter().zip(&logits).map(|(prompt, logits)| {
            observed(prompt, width, logits.values.get(..prompt.len() * arithmetic::VOCABULARY)?)
        });
        told.collect::<Option<_>>().ok_or_else(|| "its logits are not those of a known arithmetic".into())
    }
}
