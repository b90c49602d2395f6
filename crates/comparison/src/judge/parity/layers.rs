//! Compares hidden states of two computations layer by layer, to find where two engines diverge.

use bundle::Precision;
use serde::{Deserialize, Serialize};

use crate::judge::parity::Logits;
use crate::plan::Contender;

/// Largest relative RMSE of a layer for which two computations still count as the same.
///
/// Set like [`facts::agreement::Tolerance`]: wide enough for sums in another order and for rounding to the precision,
/// and narrow against a wrong operation, which shows as 0.1 or more in its layer.
pub fn limit(contender: &Contender) -> f64 {
    let cache = contender.asked_cache();
    limit_at(contender.precision).max(limit_at(cache))
}

fn limit_at(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 1e-4,
        Precision::F16 | Precision::Nf4 => 0.02,
        Precision::Bf16 => 0.1,
        // Activations may be rounded to 8 bits.
        Precision::Int8 | Precision::Int4 | Precision::File => 0.1,
    }
}

/// Distance of one layer's output from the reference's, over all positions of all prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerDifference {
    /// Name of the layer: `embeddings`, `layer 1` …, `final norm`, `logits`.
    pub layer: String,
    /// Largest absolute difference of two numbers.
    #[serde(deserialize_with = "crate::facts::agreement::number")]
    pub max_abs: f64,
    /// Root mean squared error: √(mean of squared differences).
    #[serde(deserialize_with = "crate::facts::agreement::number")]
    pub rmse: f64,
    /// √(mean of squares) of the reference: the scale of the two figures above.
    pub reference_rms: f64,
    /// √(mean over positions of ‖ours − reference‖² ÷ ‖reference‖²). Every position has the same weight. The
    /// activations of the first token are often a hundred times larger than all others (Xiao and others 2023,
    /// "attention sinks"), so RMSE ÷ RMS would reflect little else.
    #[serde(deserialize_with = "crate::facts::agreement::number")]
    pub relative_rmse: f64,
    /// Mean over positions of the cosine of the angle between the two vectors.
    #[serde(deserialize_with = "crate::facts::agreement::number")]
    pub cosine: f64,
    /// Whether the difference exceeds the tolerance or is not finite.
    pub beyond: bool,
}

#[derive(Debug, Clone, Default)]
pub struct LayerSums {
    positions: usize,
    numbers: usize,
    max_abs: f64,
    squares: f64,
    reference_squares: f64,
    relative_squares: f64,
    cosines: f64,
    not_finite: bool,
}

impl LayerSums {
    /// Adds the layer's output for a prompt, `[batch, positions, width]` on both sides.
    pub fn add(&mut self, reference: &Logits, ours: &Logits) -> Result<(), String> {
        let shape = |states: &Logits| (states.batch, states.positions, states.vocabulary);
        if shape(reference) != shape(ours) {
            let (ours, theirs) = (shape(ours), shape(reference));
            return Err(format!("its hidden states have shape {ours:?}, the reference's {theirs:?}"));
        }
        for sequence in 0..reference.batch {
            for position in 0..reference.positions {
                self.add_position(reference.row(sequence, position), ours.row(sequence, position));
            }
        }
        Ok(())
    }

    fn add_position(&mut self, reference: &[f32], ours: &[f32]) {
        let (mut difference, mut of_reference, mut of_ours, mut product) = (0.0, 0.0, 0.0, 0.0);
        for (&theirs, &ours) in reference.iter().zip(ours) {
            let (theirs, ours) = (f64::from(theirs), f64::from(ours));
            self.max_abs = self.max_abs.max((ours - theirs).abs());
            difference += (ours - theirs).powi(2);
            of_reference += theirs * theirs;
            of_ours += ours * ours;
            product += theirs * ours;
            self.not_finite |= !ours.is_finite();
        }
        self.positions += 1;
        self.numbers += reference.len();
        self.squares += difference;
        self.reference_squares += of_reference;
        // Two zero vectors are equal; no other vector is near a zero vector.
        self.relative_squares += if difference == 0.0 { 0.0 } else { difference / of_reference };
        self.cosines += if difference == 0.0 {
            1.0
        } else {
            product / (of_reference * of_ours).sqrt().max(f64::MIN_POSITIVE)
        };
    }

    /// The difference from the sums. `limit` is the largest relative RMSE that counts as the same.
    pub fn difference(&self, layer: String, limit: f64) -> LayerDifference {
        let mean = |sum: f64, count: usize| sum / count.max(1) as f64;
        let relative_rmse = mean(self.relative_squares, self.positions).sqrt();
        LayerDifference {
            layer,
            max_abs: self.max_abs,
            rmse: mean(self.squares, self.numbers).sqrt(),
            reference_rms: mean(self.reference_squares, self.numbers).sqrt(),
            relative_rmse,
            cosine: mean(self.cosines, self.positions),
            beyond: self.not_finite || relative_rmse.is_nan() || relative_rmse > limit,
        }
    }
}

/// The layers' names for `count` hidden states. The last state is taken after the final norm, if there is one.
pub fn name(layer: usize, count: usize, has_final_norm: bool) -> String {
    match layer {
        0 => "embeddings".into(),
        last if last + 1 == count && has_final_norm => "final norm".into(),
        layer => format!("layer {layer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(rows: &[[f32; 2]]) -> Logits {
        let values = rows.iter().flatten().copied().collect();
        Logits { batch: 1, positions: rows.len(), vocabulary: 2, values }
    }

    fn difference(reference: &[[f32; 2]], ours: &[[f32; 2]]) -> LayerDifference {
        let mut sums = LayerSums::default();
        sums.add(&states(reference), &states(ours)).unwrap();
        sums.difference("layer 1".into(), 0.1)
    }

    #[test]
    fn figures_are_those_of_the_definitions() {
        // Differences (0, 1) and (0, 0) of (3, 4) and (0, 2).
        let found = difference(&[[3.0, 4.0], [0.0, 2.0]], &[[3.0, 5.0], [0.0, 2.0]]);
        assert_eq!((found.max_abs, found.rmse), (1.0, 0.5));
        assert!((found.reference_rms - (29.0 / 4.0f64).sqrt()).abs() < 1e-12);
        assert!((found.relative_rmse - (0.5 / 25.0f64).sqrt()).abs() < 1e-12);
        let cosine = (29.0 / (5.0 * 34f64.sqrt()) + 1.0) / 2.0;
        assert!((found.cosine - cosine).abs() < 1e-12);
        assert!(found.beyond);
    }

    #[test]
    fn a_small_position_is_not_hidden_by_a_large_one() {
        let found = difference(&[[1e4, 0.0], [1.0, 0.0]], &[[1e4, 0.0], [0.0, 1.0]]);
        assert!(found.rmse / found.reference_rms < 1e-3);
        assert!(found.beyond && found.relative_rmse > 0.5, "{found:?}");
    }

    #[test]
    fn what_is_not_finite_diverges_and_zeros_agree_with_zeros() {
        assert!(difference(&[[1.0, 1.0]], &[[1.0, f32::NAN]]).beyond);
        assert!(difference(&[[1.0, 1.0]], &[[1.0, f32::INFINITY]]).beyond);
        assert!(difference(&[[0.0, 0.0]], &[[1e-6, 0.0]]).beyond);
        let same = difference(&[[0.0, 0.0]], &[[0.0, 0.0]]);
        assert_eq!((same.relative_rmse, same.cosine, same.beyond), (0.0, 1.0, false));
    }

    #[test]
    fn a_layer_is_beyond_where_its_error_exceeds_the_limit() {
        let layer = |layer: &str, ours: f32| {
            let mut sums = LayerSums::default();
            sums.add(&states(&[[1.0, 0.0]]), &states(&[[ours, 0.0]])).unwrap();
            sums.difference(layer.into(), 1e-4)
        };
        let layers = [layer("embeddings", 1.0), layer("layer 1", 1.25), layer("logits", 1.0 + f32::EPSILON)];
        assert_eq!(layers.map(|layer| layer.beyond), [false, true, false]);
    }

    #[test]
    fn hidden_states_are_named_by_what_they_come_after() {
        let names: Vec<_> = (0..3).map(|layer| name(layer, 3, true)).collect();
        assert_eq!(name(2, 3, false), "layer 2", "a model may have no norm behind its last layer");
        assert_eq!(names, ["embeddings", "layer 1", "final norm"]);
    }

    #[test]
    fn the_page_of_measures_states_these_limits() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/measures.md");
        let page = std::fs::read_to_string(page).unwrap();
        for precision in Precision::ALL {
            let line = format!(
                "| {} | {} |",
                precision.name(),
                match limit_at(precision) {
                    small if small < 0.005 => format!("{small:e}"),
                    limit => format!("{limit}"),
                }
            );
            assert!(page.contains(&line), "docs/reference/measures.md lacks: {line}");
        }
    }
}
