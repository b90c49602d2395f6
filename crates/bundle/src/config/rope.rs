//! How positions are rotated, from the fields of a config.json.

use super::fields::Fields;
use super::model::Architecture;
use super::position::{Llama3Scaling, LongRope, Rotary};
use crate::error::BundleError;

/// Range of divisors and thresholds of frequencies. Frequencies are f32: outside it they would be zero or
/// infinite.
const FINITE: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
/// The base of gemma3's sliding layers, if the configuration has none.
const LOCAL_THETA: f64 = 10_000.0;

/// The rotations of a model.
pub(super) struct Rotations {
    pub(super) main: Rotary,
    /// The rotation of sliding layers, if it differs.
    pub(super) sliding: Option<Rotary>,
    /// Leading dimensions of a head that are rotated, if not all.
    pub(super) rotated: Option<usize>,
}

/// transformers 5 writes `rope_parameters`, by kind of layer where they differ; before it, `rope_theta`,
/// `rope_local_base_freq` and `rope_scaling`.
pub(super) fn rotations(
    architecture: Architecture,
    fields: &Fields<'_>,
    (head_dim, max_positions): (usize, usize),
) -> Result<Rotations, BundleError> {
    let default_theta = match architecture {
        Architecture::Gemma3 => 1e6,
        Architecture::Smollm3 => 2e6,
        _ => 10_000.0,
    };
    let parameters = fields.object("rope_parameters")?;
    let by_kind = |kind: &str| parameters.map(|p| p.object(kind)).transpose().map(Option::flatten);
    let main_parameters = match by_kind("full_attention")? {
        Some(full) => Some(full),
        None => parameters,
    };
    let rotated = partial(architecture, fields, main_parameters, head_dim)?;
    let reader = Reader { fields, max_positions, dims: rotated.unwrap_or(head_dim) };
    let theta = match main_parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => fields.number("rope_theta", default_theta)?,
    };
    let scaling = main_parameters.or(fields.object("rope_scaling")?);
    let main = reader.rotary(theta, scaling)?;
    let sliding = match (architecture, by_kind("sliding_attention")?) {
        (_, Some(own)) => Some(reader.rotary(own.number("rope_theta", LOCAL_THETA)?, Some(own))?),
        (Architecture::Gemma3, None) => {
            let theta = fields.number("rope_local_base_freq", LOCAL_THETA)?;
            Some(reader.rotary(theta, None)?)
        }
        _ => None,
    };
    // Dropped if it equals the main rotation.
    let sliding = sliding.filter(|own| *own != main);
    Ok(Rotations { main, sliding, rotated })
}

/// The rotations of ModernBERT's global layers and of its local ones. Before transformers 5, the bases were
/// separate fields.
pub(super) fn modernbert(
    fields: &Fields<'_>,
    (dims, max_positions): (usize, usize),
) -> Result<(Rotary, Rotary), BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let reader = Reader { fields, max_positions, dims };
    let of_kind = |kind: &str, old: &str, theta: f64| {
        let own = parameters.map(|p| p.object(kind)).transpose()?.flatten();
        let given = own.map(|own| own.optional_number("rope_theta")).transpose()?.flatten();
        let theta = match given {
            Some(theta) => theta,
            None => fields.number(old, theta)?,
        };
        reader.rotary(theta, own.or(fields.object("rope_scaling")?))
    };
    Ok((
        of_kind("full_attention", "global_rope_theta", 160_000.0)?,
        of_kind("sliding_attention", "local_rope_theta", LOCAL_THETA)?,
    ))
}

/// The rotation of a model, with this base if its parameters have none.
pub(super) fn plain(
    fields: &Fields<'_>,
    theta: f64,
    (dims, max_positions): (usize, usize),
) -> Result<Rotary, BundleError> {
    let parameters = fields.object("rope_parameters")?;
    let given = parameters.map(|p| p.optional_number("rope_theta")).transpose()?.flatten();
    Reader { fields, max_positions, dims }.rotary(given.unwrap_or(theta), parameters)
}

fn partial(
    architecture: Architecture,
    fields: &Fields<'_>,
    parameters: Option<Fields<'_>>,
    head_dim: usize,
) -> Result<Option<usize>, BundleError> {
    let mut factor = 1.0;
    for place in [Some(Fields(fields.0)), parameters].into_iter().flatten() {
        factor = place.number("partial_rotary_factor", factor)?;
    }
    if factor == 1.0 {
        return Ok(None);
    }
    let rotated = (head_dim as f64 * factor) as usize;
    if architecture != Architecture::Phi3 {
        let reason = format!("partial_rotary_factor {factor} is not supported but for phi3");
        return Err(BundleError::Config(reason));
    }
    if !(0.0..1.0).contains(&factor) || rotated == 0 || !rotated.is_multiple_of(2) {
        let reason = format!(
            "partial_rotary_factor {factor} of heads of {head_dim} is {rotated}, not an even part of a head"
        );
        return Err(BundleError::Config(reason));
    }
    Ok(Some(rotated))
}

struct Reader<'a> {
    fields: &'a Fields<'a>,
    max_positions: usize,
    /// Dimensions that are rotated.
    dims: usize,
}

impl Reader<'_> {
    fn rotary(&self, theta: f64, scaling: Option<Fields<'_>>) -> Result<Rotary, BundleError> {
        if theta <= 1.0 {
            return Err(BundleError::Config(format!("rope_theta is {theta}; it must be above 1")));
        }
        let mut rotary = Rotary::plain(theta);
        let Some(scaling) = scaling else { return Ok(rotary) };
        let kind = match scaling.optional_text("rope_type")? {
            Some(kind) => kind,
            None => scaling.optional_text("type")?.unwrap_or("default"),
        };
        match kind {
            "default" => {}
            "linear" => rotary.linear_factor = positive(&scaling, "factor")?,
            "llama3" => {
                rotary.llama3 = Some(Llama3Scaling {
                    factor: positive(&scaling, "factor")?,
                    low_freq_factor: positive(&scaling, "low_freq_factor")?,
                    high_freq_factor: positive(&scaling, "high_freq_factor")?,
                    original_max_positions: scaling.count("original_max_position_embeddings")?,
                });
            }
            // `su` is its name in older configurations of phi3.
            "longrope" | "su" => rotary.longrope = Some(self.longrope(&scaling)?),
            other => {
                let reason = format!(
                    "rope scaling {other:?} is not supported; supported are default, linear, llama3 and longrope"
                );
                return Err(BundleError::Config(reason));
            }
        }
        Ok(rotary)
    }

    /// As in transformers' `_compute_longrope_parameters`.
    fn longrope(&self, scaling: &Fields<'_>) -> Result<LongRope, BundleError> {
        let original = "original_max_position_embeddings";
        let original_max_positions = match scaling.optional_count(original)? {
            Some(count) => count,
            None => self.fields.optional_count(original)?.unwrap_or(self.max_positions),
        };
        let divisors = |name: &str| {
            let divisors = scaling.numbers(name)?;
            let wanted = self.dims / 2;
            if divisors.len() == wanted && divisors.iter().all(|divisor| FINITE.contains(divisor)) {
                return Ok(divisors);
            }
            let held = divisors.len();
            let reason = format!(
                "{name} has {held} divisors; {} rotated dimensions need {wanted} between 1e-6 and 1e6",
                self.dims
            );
            Err(BundleError::Config(reason))
        };
        let (short, long) = (divisors("short_factor")?, divisors("long_factor")?);
        let factor = match scaling.optional_number("factor")? {
            Some(factor) => factor,
            None => self.max_positions as f64 / original_max_positions.max(1) as f64,
        };
        let scale = match scaling.optional_number("attention_factor")? {
            Some(scale) => scale,
            None if factor <= 1.0 || original_max_positions < 2 => 1.0,
            None => (1.0 + factor.ln() / (original_max_positions as f64).ln()).sqrt(),
        };
        Ok(LongRope { short, long, original_max_positions, scale })
    }
}

fn positive(scaling: &Fields<'_>, name: &str) -> Result<f64, BundleError> {
    let number = scaling.required_number(name)?;
    if FINITE.contains(&number) {
        return Ok(number);
    }
    Err(BundleError::Config(format!("field {name:?} is {number}; it must be between 1e-6 and 1e6")))
}
