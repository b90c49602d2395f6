//! The vector of a text, from those of its tokens.

use bundle::Pooling;

use crate::math::add;

/// The vector of each text: `[tokens, width]` → `[texts, width]`.
pub(super) fn pool(x: &[f32], width: usize, lengths: &[usize], pooling: Pooling) -> Vec<f32> {
    let mut pooled = vec![0.0; lengths.len() * width];
    let mut rest = x;
    for (out, &length) in pooled.chunks_exact_mut(width).zip(lengths) {
        let rows;
        (rows, rest) = rest.split_at(length * width);
        let others = || rows.chunks_exact(width).skip(1);
        match pooling {
            Pooling::Last => out.copy_from_slice(&rows[rows.len() - width..]),
            Pooling::Cls | Pooling::Mean | Pooling::Max => out.copy_from_slice(&rows[..width]),
        }
        match pooling {
            Pooling::Mean => {
                others().for_each(|row| add(out, row));
                let share = (length as f32).recip();
                out.iter_mut().for_each(|out| *out *= share);
            }
            Pooling::Max => {
                others().for_each(|row| out.iter_mut().zip(row).for_each(|(out, x)| *out = out.max(*x)));
            }
            Pooling::Cls | Pooling::Last => {}
        }
    }
    pooled
}

/// Divides each vector by its length.
pub(super) fn normalise(vectors: &mut [f32], width: usize) {
    for vector in vectors.chunks_exact_mut(width) {
        // The floor is that of PyTorch's `normalize`.
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
        vector.iter_mut().for_each(|x| *x /= norm);
    }
}
