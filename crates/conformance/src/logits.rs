//! Comparisons of an engine's logits with others.

use engine::{Decode, HiddenStates, InferenceEngine, Want};

use crate::models::Reference;

/// Largest absolute difference of two computations of the same f32 logits. The order of summation differs
/// between frameworks; 2e-4 is some hundred times the effect seen on the tiny models, and far below the
/// effect of any wrong operation.
pub const TOLERANCE: f32 = 2e-4;

/// Largest absolute difference; infinite where the lengths differ or a number is not finite.
pub fn max_abs_difference(a: &[f32], b: &[f32]) -> f32 {
    if a.len() != b.len() || a.iter().chain(b).any(|x| !x.is_finite()) {
        return f32::INFINITY;
    }
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Index of the largest logit, the first of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

/// Logits of all positions of `rows`, which are of one length, appended `piece` positions at a time.
pub fn logits_in_pieces<E: InferenceEngine + Decode>(
    engine: &mut E,
    rows: &[&[u32]],
    piece: usize,
) -> Vec<f32> {
    let positions = rows[0].len();
    engine.begin(rows.len(), positions).expect("begins");
    let mut logits = vec![Vec::new(); rows.len()];
    for start in (0..positions).step_by(piece) {
        let end = positions.min(start + piece);
        let tokens: Vec<u32> = rows.iter().flat_map(|row| &row[start..end]).copied().collect();
        let appended = engine.append(&tokens, Want::All).expect("appends");
        for (logits, appended) in logits.iter_mut().zip(appended.chunks_exact(appended.len() / rows.len())) {
            logits.extend_from_slice(appended);
        }
    }
    logits.concat()
}

/// Holds an engine that rounds to `reference`, one position at a time, five, and all at once: logits are that near, and
/// so is the chosen token's to the largest.
pub fn check_follows<E: InferenceEngine + Decode>(
    engine: &mut E,
    reference: &Reference,
    tolerance: f32,
    case: &str,
) {
    let vocabulary = reference.logits.len() / reference.tokens.len();
    for piece in [1, 5, reference.positions] {
        let logits = logits_in_pieces(engine, &reference.rows(), piece);
        let difference = max_abs_difference(&logits, &reference.logits);
        assert!(difference <= tolerance, "{case}, pieces of {piece}: {difference}");
        for (ours, theirs) in logits.chunks(vocabulary).zip(reference.logits.chunks(vocabulary)) {
            let margin = theirs[argmax(theirs) as usize] - theirs[argmax(ours) as usize];
            assert!(
                margin <= tolerance,
                "{case}, pieces of {piece}: the chosen token's logit is {margin} lower"
            );
        }
    }
}

/// Holds hidden states to those of a reference.
pub fn check_hidden_states(ours: &HiddenStates, theirs: &[Vec<f32>], tolerance: f32) {
    assert_eq!(ours.layers.len(), theirs.len(), "embeddings and one state a layer");
    for (layer, (ours, theirs)) in ours.layers.iter().zip(theirs).enumerate() {
        let difference = max_abs_difference(ours, theirs);
        assert!(difference <= tolerance, "hidden state {layer} differs by {difference}");
    }
}
