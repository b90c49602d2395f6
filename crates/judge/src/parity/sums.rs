//! Sums over the positions of two computations of the same thing.

use crate::parity::logits::{Logits, argmax, is_choice, kl_divergence};

/// Distance of one computation from another.
#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) positions: usize,
    numbers: usize,
    pub(crate) max_abs: f64,
    squares: f64,
    kl: f64,
    choices: usize,
    pub(crate) largest: f32,
    pub(crate) not_finite: usize,
}

impl Sums {
    /// Over all positions of cases of the same shapes.
    pub(crate) fn over(reference: &[Logits], ours: &[Logits], tie: f32) -> Sums {
        let mut sums = Sums::default();
        for (theirs, ours) in reference.iter().zip(ours) {
            for sequence in 0..theirs.batch {
                for position in 0..theirs.positions {
                    sums.add(theirs.row(sequence, position), ours.row(sequence, position), tie);
                }
            }
        }
        sums
    }

    /// Root of the mean squared difference of numbers.
    pub(crate) fn rmse(&self) -> f64 {
        (self.squares / self.numbers.max(1) as f64).sqrt()
    }

    /// Nats per position.
    pub(crate) fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }

    /// Share of positions that agree on the most likely token.
    pub(crate) fn top1(&self) -> f64 {
        self.choices as f64 / self.positions.max(1) as f64
    }

    fn add(&mut self, reference: &[f32], ours: &[f32], tie: f32) {
        self.positions += 1;
        self.numbers += reference.len();
        self.not_finite += ours.iter().filter(|value| !value.is_finite()).count();
        for (theirs, ours) in reference.iter().zip(ours) {
            let difference = f64::from(ours - theirs);
            self.max_abs = self.max_abs.max(difference.abs());
            self.squares += difference * difference;
            self.largest = self.largest.max(theirs.abs());
        }
        self.kl += kl_divergence(reference, ours);
        self.choices += usize::from(is_choice(reference, argmax(ours), tie));
    }
}
