//! Relative position biases: numbers added to the scores, by the distance of two tokens.

use bundle::ModelConfig;
use engine::EngineError;

use crate::reader::Reader;

/// One table for all layers and text lengths. A bias depends only on the distance, so the biases of a query's
/// keys are one contiguous piece of a row.
#[derive(Debug)]
pub(crate) struct Relative {
    /// `[heads, 2 · positions − 1]`, for keys from `positions − 1` before their query to as many after it.
    biases: Vec<f32>,
    positions: usize,
}

impl Relative {
    /// `None` if the model has no biases.
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig) -> Result<Option<Relative>, EngineError> {
        let relative = config.encoder.as_ref().and_then(|encoder| encoder.relative);
        let (Some(relative), Some(name)) = (relative, config.relative_bias()) else { return Ok(None) };
        let table = reader.vector(&name)?;
        let (heads, positions) = (config.heads, config.max_positions);
        let rows = (1..positions).rev().map(|before| relative.bucket(before, 0));
        let rows: Vec<usize> = rows.chain((0..positions).map(|behind| relative.bucket(0, behind))).collect();
        let biases = (0..heads).flat_map(|head| rows.iter().map(move |row| (row, head)));
        let biases = biases.map(|(row, head)| table[row * heads + head]).collect();
        Ok(Some(Relative { biases, positions }))
    }

    /// The biases of one head, for the query at this position and `keys` keys from `first` on.
    pub(crate) fn scores(&self, head: usize, query: usize, first: usize, keys: usize) -> &[f32] {
        let row = head * (2 * self.positions - 1);
        &self.biases[row + self.positions - 1 + first - query..][..keys]
    }
}
