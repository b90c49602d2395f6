//! Masked diffusion: steps take the role of tokens.

use facts::agreement::TokenAgreement;
use facts::run::Run;
use history::Case;
use plan::work::Denoise;

use super::Selection;
use crate::metric::Metric::*;
use crate::parity::{self, Reference};

pub(super) const STEPS: Selection = Selection {
    replaced: &[
        (Latency, StepTime),
        (Throughput, DenoisingThroughput),
        (FirstToken, Total),
        (PrefillThroughput, StepsPerSecond),
    ],
    replaces_in_tables: true,
    follows: &[(StepTime, DenoisingThroughput), (Total, DenoisingThroughput)],
};

/// The choices of timed requests for every mask, and their steps. Drawn tokens do not count, and neither do
/// those of a process that feeds itself: its states soon differ from the reference's.
pub(super) fn tokens(work: &Denoise, reference: &Reference, run: &Run, tie: f32) -> TokenAgreement {
    if work.how.temperature > 0.0 || !work.forced {
        return TokenAgreement::default();
    }
    let mut agreement = parity::chosen(reference, run, tie, true);
    for (case, sample) in run.requests() {
        let Some(along) = reference.outputs.get(case) else { continue };
        let steps = sample.output.unmasked().iter().flatten().zip(along.unmasked().iter().flatten());
        agreement.misplaced += steps.filter(|(ours, theirs)| ours != theirs).count();
    }
    agreement
}

pub(super) fn case(work: &Denoise) -> Case {
    Case {
        decode: if work.forced { "forced" } else { "greedy" }.to_owned(),
        steps: Some(work.how.steps),
        algorithm: Some(algorithm(&work.how)),
        ..Case::default()
    }
}

/// How a step unmasks, with unusual settings.
fn algorithm(how: &protocol::Denoise) -> String {
    let mut text = how.algorithm.name().to_owned();
    let mut add = |is_said: bool, what: String| {
        if is_said {
            text += &format!(", {what}");
        }
    };
    add(how.temperature > 0.0, format!("temperature {}", how.temperature));
    add(how.top_p.is_some(), format!("top-p {}", how.top_p.unwrap_or_default()));
    add(how.top_k.is_some(), format!("top-k {}", how.top_k.unwrap_or_default()));
    add(how.alg_temp > 0.0, format!("alg-temp {}", how.alg_temp));
    text
}

/// Unusual settings of a case, for people: its steps, or that it has none.
pub(crate) fn unusual(case: &Case) -> Vec<String> {
    let algorithm = case.algorithm.as_deref().unwrap_or("denoised");
    let steps = case.steps.map(|steps| format!("{steps} steps ({algorithm})"));
    steps.into_iter().chain(case.autoregressive.then(|| "token by token".to_owned())).collect()
}
