//! Llama 3's scaling of the rotary frequencies, recovered from the factors in a GGUF.

use bundle::{Llama3Scaling, Rotary, rotary::inverse_frequencies};
use serde_json::{Value, json};

/// The factor of all models so far.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;

/// The parameters that give `factors`, one divisor for each frequency; none where nothing is scaled.
///
/// A GGUF has the divisors alone. Its converters know three parameters besides the largest divisor: the
/// original context and two bounds, of which only ratios matter. So the bounds of every Llama 3 are assumed,
/// the context is searched among the powers of two, and it counts as found only if it gives every divisor.
pub(crate) fn llama3(factors: &[f32], theta: f64, head_dim: usize) -> Result<Option<Value>, String> {
    if factors.len() != head_dim / 2 {
        let count = factors.len();
        return Err(format!("rope_freqs.weight has {count} factors for heads of {head_dim}"));
    }
    if factors.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let factor = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let plain = inverse_frequencies(&Rotary::plain(theta), head_dim);
    let gives_back = |original_max_positions: usize| {
        let llama3 = Some(Llama3Scaling {
            factor,
            low_freq_factor: LOW_FREQ_FACTOR,
            high_freq_factor: HIGH_FREQ_FACTOR,
            original_max_positions,
        });
        let scaled = inverse_frequencies(&Rotary { llama3, ..Rotary::plain(theta) }, head_dim);
        plain.iter().zip(scaled).zip(factors).all(|((&plain, scaled), &factor)| {
            let wanted = plain / factor;
            (scaled - wanted).abs() <= 1e-5 * wanted.abs()
        })
    };
    let contexts = (4..=24).map(|exponent| 1usize << exponent);
    // If several contexts give the same divisors, as for small heads, any of them is right.
    match contexts
        .clone()
        .find(|&context| context == 8192 && gives_back(context))
        .or_else(|| contexts.clone().find(|&context| gives_back(context)))
    {
        Some(context) => Ok(Some(json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW_FREQ_FACTOR,
            "high_freq_factor": HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": context,
        }))),
        None => Err("rope_freqs.weight is not a llama-3 scaling of the rotary frequencies, \
                     which is the only kind supported"
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As llama.cpp's converter computes them.
    fn factors(factor: f64, context: f64, theta: f64, head_dim: usize) -> Vec<f32> {
        let factors = (0..head_dim / 2).map(|i| {
            let frequency = theta.powf(-2.0 * i as f64 / head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < context / 4.0 {
                1.0
            } else if wavelength > context {
                factor as f32
            } else {
                let smooth = (context / wavelength - 1.0) / 3.0;
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        });
        factors.collect()
    }

    #[test]
    fn published_llama_3_scalings_are_found_again() {
        for (factor, head_dim) in [(8.0, 128), (32.0, 64)] {
            let found = llama3(&factors(factor, 8192.0, 5e5, head_dim), 5e5, head_dim).unwrap().unwrap();
            assert_eq!(found["factor"], factor);
            assert_eq!(found["original_max_position_embeddings"], 8192);
        }
    }

    #[test]
    fn another_context_is_found_too() {
        let found = llama3(&factors(8.0, 512.0, 1e4, 64), 1e4, 64).unwrap().unwrap();
        assert_eq!(found["original_max_position_embeddings"], 512);
    }

    #[test]
    fn ones_scale_nothing() {
        assert_eq!(llama3(&[1.0; 32], 1e4, 64), Ok(None));
    }

    #[test]
    fn what_is_no_llama_3_scaling_is_refused() {
        let mut wrong = factors(8.0, 8192.0, 5e5, 64);
        wrong[0] = 2.0;
        assert!(llama3(&wrong, 5e5, 64).unwrap_err().contains("rope_freqs"));
        assert!(llama3(&wrong, 5e5, 128).unwrap_err().contains("32 factors"));
    }
}
