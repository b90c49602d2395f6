//! Rotary position embedding tables (Su et al. 2021, "RoFormer", arXiv:2104.09864), in the
//! rotate-half convention of Hugging Face transformers. Computed here once so that all engines
//! rotate by bit-identical angles.

use crate::config::{Llama3Scaling, LongRope, ModelConfig, Rotary, Yarn};

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
    match (&rotary.llama3, &rotary.yarn) {
        (Some(scaling), _) => base.map(|f| llama3(f, scaling)).collect(),
        (None, Some(scaling)) => yarn(base, scaling, rotary.theta, dims),
        (None, None) => base.collect(),
    }
}

/// The frequencies mixed of those kept and those divided (transformers, `modeling_rope_utils.py`,
/// `_compute_yarn_parameters`).
fn yarn(base: impl Iterator<Item = f32>, s: &Yarn, theta: f64, dims: usize) -> Vec<f32> {
    // The index of the frequency that turns so often within the original context.
    let index = |turns: f64| {
        let wave = s.original_max_positions as f64 / (turns * std::f64::consts::TAU);
        dims as f64 * wave.ln() / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (index(s.beta_fast), index(s.beta_slow));
    if s.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    // Not `clamp`, which panics where the bounds cross.
    let (low, mut high) = (low.max(0.0), high.min(dims as f64 - 1.0));
    if low == high {
        high += 0.001;
    }
    let mix = base.enumerate().map(|(index, frequency)| {
        let divided = (((index as f64 - low) / (high - low)).clamp(0.0, 1.0)) as f32;
        frequency / s.factor as f32 * divided + frequency * (1.0 - divided)
    });
    mix.collect()
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
        None => (scaled(rotary, dims), rotary.yarn.as_ref().map(|yarn| yarn.scale as f32)),
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
    let rotations = config.rotations.iter();
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
    fn yarn_s_frequencies_are_those_of_transformers() {
        let plain = |factor: f64, original_max_positions: usize| Yarn {
            factor,
            original_max_positions,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            scale: 1.0,
        };
        // Computed with transformers 5's formula in f64.
        type Frequencies = &'static [(usize, f32)];
        let cases: [(Yarn, f64, usize, Frequencies); 5] = [
            (
                plain(4.0, 32768),
                1e6,
                128,
                &[(0, 1.0), (1, 0.805_842_2), (21, 0.010_746_078), (32, 6.029_412e-4), (63, 3.102_344_4e-7)],
            ),
            (plain(4.0, 64), 1e4, 8, &[(0, 1.0), (1, 0.0625), (2, 0.0025), (3, 0.00025)]),
            (Yarn { truncate: false, ..plain(4.0, 64) }, 1e4, 8, &[(1, 0.025_595_246)]),
            (
                Yarn { beta_fast: 16.0, beta_slow: 2.0, ..plain(8.0, 4096) },
                5e5,
                64,
                &[(8, 0.037_606_03), (10, 0.014_145_376), (16, 1.767_767e-4)],
            ),
            (plain(4.0, 6), 1e4, 8, &[(0, 1.0), (1, 0.025)]),
        ];
        for (yarn, theta, dims, wanted) in cases {
            let rotary = Rotary { yarn: Some(yarn), ..Rotary::plain(theta) };
            let found = inverse_frequencies(&rotary, dims);
            for &(at, wanted) in wanted {
                assert!((found[at] - wanted).abs() <= 1e-6 * wanted, "{rotary:?} {at}: {}", found[at]);
            }
        }
        for (original, dims) in [1, 4, 1 << 40].into_iter().flat_map(|o| [2, 4, 8].map(|dims| (o, dims))) {
            let rotary = Rotary { yarn: Some(plain(4.0, original)), ..Rotary::plain(1e4) };
            assert!(inverse_frequencies(&rotary, dims).iter().all(|frequency| frequency.is_finite()));
        }
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
