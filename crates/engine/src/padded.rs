//! Texts that are padded to the longest, and what is asked for of what a model makes of them.

use bundle::{ModelConfig, Pooling, Scored};

use crate::{EncodeTask, Texts};

impl Texts<'_> {
    /// Number of tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// One number for each token, as rows of a matrix `[texts, longest]` that `fill` completes.
    pub fn padded<T: Copy>(&self, mut numbers: impl Iterator<Item = T>, fill: T) -> Vec<T> {
        let longest = self.longest();
        let rows = self.lengths.iter().flat_map(|&length| {
            let mut row: Vec<T> = numbers.by_ref().take(length).collect();
            row.resize(longest, fill);
            row
        });
        rows.collect()
    }

    /// The numbers of `task`, from what the model made of padded texts: vectors `[texts, longest, hidden]`, or what its head
    /// gave, `[texts, labels]` or `[texts, longest, labels]`.
    pub fn unpadded(&self, task: EncodeTask, config: &ModelConfig, numbers: &[f32]) -> Vec<f32> {
        let head = config.encoder.as_ref().and_then(|encoder| encoder.head.as_ref());
        let width = match (task, head.map(|head| (head.of, head.labels))) {
            (EncodeTask::Score, Some((Scored::Tokens, labels))) => labels,
            (EncodeTask::Score, _) => return numbers.to_vec(),
            (EncodeTask::Embed { .. }, _) => config.hidden_size,
        };
        let mut unpadded = Vec::new();
        for (text, &length) in numbers.chunks_exact(self.longest() * width).zip(self.lengths) {
            let rows = &text[..length * width];
            match task {
                EncodeTask::Embed { pooling, normalise } => {
                    pool(rows, width, (pooling, normalise), &mut unpadded);
                }
                EncodeTask::Score => unpadded.extend_from_slice(rows),
            }
        }
        unpadded
    }
}

/// Appends the vector of a text to `vectors`, from those of its tokens.
pub fn pool(rows: &[f32], width: usize, (pooling, normalise): (Pooling, bool), vectors: &mut Vec<f32>) {
    let start = vectors.len();
    let of_token = match pooling {
        Pooling::Last => &rows[rows.len() - width..],
        _ => &rows[..width],
    };
    vectors.extend_from_slice(of_token);
    let vector = &mut vectors[start..];
    let others = rows.chunks_exact(width).skip(1);
    match pooling {
        Pooling::Cls | Pooling::Last => {}
        Pooling::Max => others.for_each(|row| {
            vector.iter_mut().zip(row).for_each(|(largest, number)| *largest = largest.max(*number));
        }),
        Pooling::Mean => {
            others.for_each(|row| vector.iter_mut().zip(row).for_each(|(sum, number)| *sum += number));
            let share = ((rows.len() / width) as f32).recip();
            vector.iter_mut().for_each(|number| *number *= share);
        }
    }
    if normalise {
        // The floor is that of PyTorch's `normalize`.
        let norm = vector.iter().map(|number| number * number).sum::<f32>().sqrt().max(1e-12);
        vector.iter_mut().for_each(|number| *number /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_pooled_from_the_rows_of_its_text() {
        let pooled = |pooling, normalise| {
            let mut vectors = vec![9.0];
            pool(&[1.0, -8.0, 5.0, 0.0], 2, (pooling, normalise), &mut vectors);
            vectors
        };
        assert_eq!(pooled(Pooling::Cls, false), [9.0, 1.0, -8.0]);
        assert_eq!(pooled(Pooling::Last, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Mean, false), [9.0, 3.0, -4.0]);
        assert_eq!(pooled(Pooling::Mean, true), [9.0, 0.6, -0.8]);
    }

    #[test]
    fn padding_completes_the_shorter_texts() {
        let texts = Texts { tokens: &[5, 6, 7, 8], types: &[], lengths: &[1, 3] };
        assert_eq!(texts.padded(texts.tokens.iter().copied(), 9), [5, 9, 9, 6, 7, 8]);
    }
}
