//! Logits, and arithmetic on rows of them.

/// Logits of one case, `[batch, positions, vocabulary]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    pub batch: usize,
    pub positions: usize,
    pub vocabulary: usize,
    pub values: Vec<f32>,
}

impl Logits {
    pub fn row(&self, sequence: usize, position: usize) -> &[f32] {
        let at = (sequence * self.positions + position) * self.vocabulary;
        &self.values[at..at + self.vocabulary]
    }
}

impl Logits {
    /// Those of the last `positions` alone, where there are more.
    pub fn last(self, positions: usize) -> Logits {
        if positions >= self.positions {
            return self;
        }
        let from = self.positions - positions;
        let rows = (0..self.batch).flat_map(|sequence| (from..self.positions).map(move |at| (sequence, at)));
        let values = rows.flat_map(|(sequence, at)| self.row(sequence, at).iter().copied()).collect();
        Logits { positions, values, ..self }
    }
}

/// log Σ exp(x) of a row of logits, in f64, without overflow.
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln()
}
