//! The files of logits that a worker writes: their shapes, and whether they agree with the tokens that it sent.

use std::path::Path;

use judge::parity::logits::{Logits, argmax, is_choice};
use measure::logits;
use protocol::Case;

use crate::problem::Problem;

/// The expected contents of a parity file for a case.
pub(crate) struct Expected<'a> {
    pub(crate) case: &'a Case,
    pub(crate) vocabulary: usize,
    /// Whether it keeps only the last position of context and prompt.
    pub(crate) prompt_last_only: bool,
    /// Tokens that the worker chose: `[request][batch][new tokens]`.
    pub(crate) chosen: Vec<Vec<Vec<u32>>>,
    /// How far apart two logits may be to count as equal.
    pub(crate) tie: f32,
}

impl Expected<'_> {
    /// Positions of context and prompt in the file.
    fn prefix(&self) -> usize {
        let all = self.case.prefixes().first().map_or(0, Vec::len);
        if self.prompt_last_only { 1 } else { all }
    }

    fn positions(&self) -> usize {
        self.prefix() + self.case.trace.first().map_or(0, Vec::len)
    }

    fn shape(&self) -> logits::Shape {
        [self.case.prompts.len(), self.positions(), self.vocabulary]
    }
}

/// Checks the file of a parity task.
pub(crate) fn parity(file: &Path, expected: &[Expected<'_>]) -> Vec<Problem> {
    if !file.is_file() {
        return vec![missing(file)];
    }
    let shapes: Vec<logits::Shape> = expected.iter().map(Expected::shape).collect();
    let found = match logits::read_parity(file, &shapes) {
        Ok(found) => found,
        Err(reason) => return vec![unreadable(file, &reason)],
    };
    if found.len() != expected.len() {
        let names: Vec<String> = (0..expected.len()).map(|case| format!("case.{case}")).collect();
        let text = format!("{} tensors of cases in {}; write {}", found.len(), name(file), names.join(", "));
        return vec![Problem::at("file", text)];
    }
    let pairs = found.iter().zip(expected).enumerate();
    pairs.filter_map(|(index, (logits, expected))| case(index, logits, expected)).collect()
}

fn case(index: usize, logits: &Logits, expected: &Expected<'_>) -> Option<Problem> {
    let [batch, positions, _] = expected.shape();
    let what = format!("case.{index} in the file");
    if let Some(problem) = shape(&what, logits, expected.shape()) {
        let kept = match expected.prompt_last_only {
            true => "the last position of context and prompt, then one for each token of the trace",
            false => "one position for each token of context, prompt and trace",
        };
        return Some(Problem { text: format!("{} ({kept})", problem.text), ..problem });
    }
    // The logits after the last token of the prompt choose the first new token.
    let first = expected.prefix() - 1;
    for (request, sequences) in expected.chosen.iter().enumerate() {
        for (sequence, tokens) in sequences.iter().enumerate().take(batch) {
            let steps = tokens.iter().enumerate().take(positions - first);
            let mut other = steps.filter(|(step, token)| {
                !is_choice(logits.row(sequence, first + step), **token as usize, expected.tie)
            });
            if let Some((step, token)) = other.next() {
                let best = argmax(logits.row(sequence, first + step));
                let text = format!(
                    "its logits choose token {best} at step {step} of {what}, but request {request} answered {token}; \
                     send the most likely token of each step, computed from the same tokens fed"
                );
                return Some(Problem::at("file", text));
            }
        }
    }
    None
}

/// Checks the file of a score.
pub(crate) fn score(file: &Path, shape_asked: [usize; 3]) -> Vec<Problem> {
    if !file.is_file() {
        return vec![missing(file)];
    }
    match logits::read_score(file, shape_asked) {
        Ok(logits) => shape("logits in the file", &logits, shape_asked).into_iter().collect(),
        Err(reason) => vec![unreadable(file, &reason)],
    }
}

fn shape(what: &str, logits: &Logits, expected: [usize; 3]) -> Option<Problem> {
    let found = [logits.batch, logits.positions, logits.vocabulary];
    if found != expected {
        let text = format!(
            "{what} has shape {found:?}; write f32 [batch, positions, vocabulary], here {expected:?}"
        );
        return Some(Problem::at("file", text));
    }
    let odd = logits.values.iter().filter(|value| !value.is_finite()).count();
    (odd > 0).then(|| {
        Problem::at(
            "file",
            format!("{odd} numbers of {what} are not finite; write the logits as computed, in f32"),
        )
    })
}

fn missing(file: &Path) -> Problem {
    Problem::at("file", format!("{} is not there; write it, and close it, before this event", name(file)))
}

fn unreadable(file: &Path, reason: &str) -> Problem {
    let text =
        format!("{} is not what was asked for: {reason}; write safetensors with F32 tensors", name(file));
    Problem::at("file", text)
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
