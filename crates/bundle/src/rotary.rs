//! Rotary position embedding tables (Su et al. 2021, "RoFormer", arXiv:2104.09864), in the
//! rotate-half convention of Hugging Face transformers. Computed here once so that all engines
//! rotate by bit-identical angles.

use crate::config::{Llama3Scaling, LongRope, ModelConfig, Rotary};

/// Inverse frequencies θ^(−2i/d) for i in 0..d/2 with d rotated dimensions, scaled according to the
/// configuration. In f32 like the reference implementation's. For LongRoPE, those of a short context.
pub fn inverse_frequencies(rotary: &Rotary, dims: usize) -> Vec<f32> {
    match &rotary.longrope {
        None => scaled(rotary, dims),
        Some(longrope) => divided(scaled(rotary, dims), &longrope.short),
    }
}

fn divided(frequencies: Vec<f32>, divisors: &[f64]) -> Vec<f32> {
    frequencies.into_iter().zip(divisors).map(|(frequency, &divisor)| frequency / divisor as f32).collect()
}

fn scaled(rotary: &Rotary, dims: usize) -> Vec<f32> {
    let base = (0..dims / 2).map(|i| {
        let exponent = (2 * i) as f32 / dims as f32;
        (1.0 / rotary.theta.powf(f64::from(exponent))) as f32
    });
    let base = base.map(|f| f / rotary.linear_factor as f32);
    match &rotary.llama3 {
        None => base.collect(),
        Some(scaling) => base.map(|f| llama3(f, scaling)).collect(),
    }
}

/// Llama 3's piecewise scaling: long wavelengths are divided by `factor`, short ones kept, those
/// between interpolated (transformers, `modeling_rope_utils.py`, `_compute_llama3_parameters`).
fn llama3(frequency: f32, s: &Llama3Scaling) -> f32 {
    let frequency = f64::from(frequency);
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    let low_wavelength = s.original_max_positions as f64 / s.low_freq_factor;
    let high_wavelength = s.original_max_positions as f64 / s.high_freq_factor;
    let scaled = if wavelength > low_wavelength {
        frequency / s.factor
    } else if wavelength < high_wavelength {
        frequency
    } else {
        let smooth = (s.original_max_positions as f64 / wavelength - s.low_freq_factor)
            / (s.high_freq_factor - s.low_freq_factor);
        (1.0 - smooth) * frequency / s.factor + smooth * frequency
    };
    scaled as f32
}

/// `(cos, sin)`, each `[positions, dims / 2]` row-major. For LongRoPE, `positions`, the room for the whole
/// context, decides whether the context is a long one: cached keys are not rotated again.
pub fn cos_sin(rotary: &Rotary, dims: usize, positions: usize) -> (Vec<f32>, Vec<f32>) {
    let (frequencies, scale) = match &rotary.longrope {
        None => (scaled(rotary, dims), None),
        Some(LongRope { short, long, original_max_positions, scale }) => {
            let divisors = if positions > *original_max_positions { long } else { short };
            (divided(scaled(rotary, dims), divisors), Some(*scale as f32))
        }
    };
    let angles = (0..positions)
        .flat_map(|position| frequencies.iter().map(move |frequency| position as f32 * frequency));
    let scale = scale.unwrap_or(1.0);
    angles.map(|angle| (angle.cos() * scale, angle.sin() * scale)).unzip()
}

/// The tables of each of [`ModelConfig::rotations`], as from [`cos_sin`].
pub fn tables(config: &ModelConfig, positions: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let rotations = config.rotations().into_iter();
    rotations.map(|rotary| cos_sin(rotary, config.rotary_dim(), positions)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frequency_turns_one_radian_a_position() {
        let rotary = Rotary::plain(10_000.0);
        let (cos, sin) = cos_sin(&rotary, 4, 3);
        assert_eq!(cos.len(), 6);
        assert_eq!((cos[0], sin[0]), (1.0, 0.0));
        assert!((cos[2] - 1f32.cos()).abs() < 1e-7 && (sin[4] - 2f32.sin()).abs() < 1e-7);
        assert!((sin[3] - 0.01f32.sin()).abs() < 1e-7);
    }

    #[test]
    fn llama3_scaling_divides_long_waves_and_keeps_short_ones() {
        let scaling = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        };
        assert_eq!(llama3(1.0, &scaling), 1.0);
        assert_eq!(llama3(1e-3, &scaling), 1e-3 / 8.0);
        let between = llama3(0.2, &scaling);
        assert!(between < 0.2 && between > 0.2 / 8.0);
    }
}
