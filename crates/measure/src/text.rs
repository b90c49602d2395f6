//! Predictions of the bundled text by a model that continues texts: perplexity at a contender's own
//! precision, and the effect of that precision.

use std::path::Path;

use bundle::Bundle;
use protocol::{Score, Task};
use tempfile::TempPath;

use crate::apart;
use crate::crew::Crew;
use crate::logits;
use crate::places::Places;
use facts::run::RunFailure;
use facts::text::TextScore;
use judge::parity::logits::Logits;
use judge::parity::text::TextSums;
use plan::Contender;

/// Number of positions that the engine computes at a time, so that its own buffers stay small.
const PIECE: usize = 128;
/// Most bytes of one window's logits: they pass through the memory of the worker and of this program.
const WINDOW_BYTES: usize = 128 << 20;

/// A reference's logits of a text, in f32. Its files are removed when it is dropped.
pub struct TextReference {
    pub framework: String,
    windows: Vec<TempPath>,
}

/// Token ids of the bundled text. `Err` if the model has no tokenizer.
pub fn bundled(places: &Places, bundle: &Bundle) -> Result<Vec<u32>, String> {
    let path = places.configs.base().join("texts/prose.txt");
    let prose = untrusted::file::read_text(&path, untrusted::file::INPUT)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let prose = prose.split_whitespace().collect::<Vec<_>>().join(" ");
    if bundle.tokenizer().is_none() {
        return Err("the model has no tokenizer".into());
    }
    apart::text(bundle).and_then(|text| text.encode(&prose)).map_err(|failure| failure.to_string())
}

impl Crew<'_> {
    /// The logits of `tokens` in f32, from the first contender that can compute them. `Err` says why none can.
    pub(crate) fn text_reference(&self, tokens: &[u32]) -> Result<TextReference, String> {
        let (framework, windows) = self.first_in_f32(|index, contender| {
            self.windows(tokens).map(|window| self.score_window(index, contender, window)).collect()
        })?;
        Ok(TextReference { framework, windows })
    }

    /// Scores `tokens` on contender `index` at its own precision, against `reference` if there is one. A long
    /// text is cut into independent windows. A window is the model's context, or shorter if the vocabulary is
    /// large.
    pub(crate) fn score_text(
        &self,
        index: usize,
        tokens: &[u32],
        reference: Option<&TextReference>,
    ) -> Result<TextScore, String> {
        let mut sums = TextSums::default();
        for (number, window) in self.windows(tokens).enumerate() {
            let file = self.score_window(index, &self.plan.contenders[index], window)?;
            let theirs = reference.and_then(|reference| reference.windows.get(number));
            let shape = [1, window.len(), self.vocabulary()];
            let theirs: Option<Logits> = theirs.map(|file| logits::read_score(file, shape)).transpose()?;
            sums.add(window, &logits::read_score(&file, shape)?, theirs.as_ref())?;
        }
        sums.score()
    }

    fn windows<'t>(&self, tokens: &'t [u32]) -> std::slice::Chunks<'t, u32> {
        let config = self.bundle.config();
        let fit = WINDOW_BYTES / (size_of::<f32>() * config.vocab_size);
        tokens.chunks(fit.min(config.max_positions).max(2))
    }

    /// Runs one process for the logits of a window. Its file is removed when dropped.
    fn score_window(&self, index: usize, contender: &Contender, window: &[u32]) -> Result<TempPath, String> {
        let file = scratch_file(self.scratch.path())?;
        let task = Task::Score(Score {
            sequences: vec![window.to_vec()],
            types: Vec::new(),
            piece: PIECE,
            kept: None,
            file: file.display().to_string(),
        });
        let outcome = self.run_job(index, &self.job(contender, task));
        match RunFailure::from_ending(outcome.ending) {
            Some(failure) => Err(failure.sentence()),
            None => Ok(file),
        }
    }
}

/// A file for a worker to write to; it is removed when dropped.
pub fn scratch_file(directory: &Path) -> Result<TempPath, String> {
    let file = tempfile::Builder::new().suffix(".safetensors").tempfile_in(directory);
    file.map(tempfile::NamedTempFile::into_temp_path)
        .map_err(|e| format!("cannot make a file in {}: {e}", directory.display()))
}
