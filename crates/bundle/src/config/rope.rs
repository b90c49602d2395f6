//! How positions are rotated, from the fields of a config.json (transformers 5.24.0, `modeling_rope_utils.py`).

use std::ops::RangeInclusive;

use super::fields::Fields;
use super::model::Architecture;
use super::{Llama3Scaling, LongRope, Rotary, Yarn, refused};
use crate::BundleError;

/// Range of divisors and thresholds of frequencies. Frequencies are f32: outside it they would be zero or
/// infinite.
const FINITE: RangeInclusive<f64> = 1e-6..=1e6;

/// The base of gemma3's sliding layers, if the configuration has none.
const LOCAL_THETA: f64 = 10_000.0;

/// The context before the frequencies were scaled.
const ORIGINAL: &str = "original_max_position_embeddings";

pub(super) struct Rotations {
    pub(super) main: Rotary,
    /// The rotation of sliding layers, which may be the same.
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
        Architecture::Cohere => 5e5,
        Architecture::Mixtral => 1e6,
        Architecture::GptOss => 1.5e5,
        _ => 10_000.0,
    };
    let [scaling, parameters] = objects(fields, "full_attention")?;
    let rotated = partial(architecture, fields, scaling.or(parameters), head_dim)?;
    let dims = rotated.unwrap_or(head_dim);
    let reader = Reader::new(architecture, fields, (dims, max_positions))?;
    let base = if architecture == Architecture::GptNeox { "rotary_emb_base" } else { "rope_theta" };
    let theta = fields.number(base, default_theta)?;
    let main = reader.one_of([scaling, parameters], theta)?;
    let of_sliding = match fields.object("rope_parameters")? {
        Some(parameters) => parameters.object("sliding_attention")?,
        None => None,
    };
    let local = match architecture {
        Architecture::Gemma3 => Some(fields.number("rope_local_base_freq", LOCAL_THETA)?),
        _ => None,
    };
    let sliding = match (of_sliding, local) {
        (None, None) => None,
        (own, local) => Some(reader.rotary(own, local.unwrap_or(LOCAL_THETA))?),
    };
    Ok(Rotations { main, sliding, rotated })
}

/// The rotations of ModernBERT's global layers and of its local ones. Before transformers 5, the bases were
/// separate fields.
pub(super) fn modernbert(
    fields: &Fields<'_>,
    sizes: (usize, usize),
) -> Result<(Rotary, Rotary), BundleError> {
    let reader = Reader::new(Architecture::ModernBert, fields, sizes)?;
    let of_kind = |kind: &str, base: &str, theta: f64| {
        reader.one_of(objects(fields, kind)?, fields.number(base, theta)?)
    };
    Ok((
        of_kind("full_attention", "global_rope_theta", 160_000.0)?,
        of_kind("sliding_attention", "local_rope_theta", LOCAL_THETA)?,
    ))
}

/// The rotation of a model, with this base if no field says another.
pub(super) fn plain(
    architecture: Architecture,
    fields: &Fields<'_>,
    theta: f64,
    sizes: (usize, usize),
) -> Result<Rotary, BundleError> {
    let theta = fields.number("rope_theta", theta)?;
    Reader::new(architecture, fields, sizes)?.one_of(objects(fields, "full_attention")?, theta)
}

/// `rope_scaling` and `rope_parameters`, or their parts for this kind of layers.
fn objects<'a>(fields: &Fields<'a>, kind: &str) -> Result<[Option<Fields<'a>>; 2], BundleError> {
    let part = |name: &str| match fields.object(name)? {
        Some(object) => Ok::<_, BundleError>(Some(object.object(kind)?.unwrap_or(object))),
        None => Ok(None),
    };
    Ok([part("rope_scaling")?, part("rope_parameters")?])
}

fn partial(
    architecture: Architecture,
    fields: &Fields<'_>,
    parameters: Option<Fields<'_>>,
    head_dim: usize,
) -> Result<Option<usize>, BundleError> {
    use Architecture::{Glm, Glm4, GptNeox, Phi, Phi3, Stablelm};
    let mut factor = match architecture {
        Phi | Glm | Glm4 => 0.5,
        GptNeox | Stablelm => 0.25,
        _ => 1.0,
    };
    if architecture == GptNeox {
        factor = fields.number("rotary_pct", factor)?;
    }
    for place in [Some(*fields), parameters].into_iter().flatten() {
        factor = place.number("partial_rotary_factor", factor)?;
    }
    if factor == 1.0 {
        return Ok(None);
    }
    let rotated = (head_dim as f64 * factor) as usize;
    if !matches!(architecture, Glm | Glm4 | GptNeox | Phi | Phi3 | Stablelm) {
        return refused(format!("partial_rotary_factor {factor} is not supported for this architecture"));
    }
    if !(0.0..1.0).contains(&factor) || rotated == 0 || !rotated.is_multiple_of(2) {
        return refused(format!(
            "partial_rotary_factor {factor} of heads of {head_dim} is {rotated}, not an even part of a head"
        ));
    }
    Ok(Some(rotated))
}

struct Reader {
    architecture: Architecture,
    dims: usize,
    max_positions: usize,
    /// From outside of the parameters, where transformers looks first.
    original: Option<usize>,
}

impl Reader {
    fn new(
        architecture: Architecture,
        fields: &Fields<'_>,
        (dims, max_positions): (usize, usize),
    ) -> Result<Reader, BundleError> {
        Ok(Reader { architecture, dims, max_positions, original: fields.optional_count(ORIGINAL)? })
    }

    /// The rotation of the one object that there is. If there are both, they must say the same: transformers uses the
    /// first.
    fn one_of(&self, objects: [Option<Fields<'_>>; 2], theta: f64) -> Result<Rotary, BundleError> {
        match objects {
            [Some(scaling), Some(parameters)] => {
                let rotary = self.rotary(Some(scaling), theta)?;
                if rotary == self.rotary(Some(parameters), theta)? {
                    return Ok(rotary);
                }
                refused("rope_scaling and rope_parameters do not say the same; remove one of them")
            }
            [scaling, parameters] => self.rotary(scaling.or(parameters), theta),
        }
    }

    /// `theta`: the base if the object has none.
    fn rotary(&self, object: Option<Fields<'_>>, theta: f64) -> Result<Rotary, BundleError> {
        let theta = match &object {
            Some(object) => object.number("rope_theta", theta)?,
            None => theta,
        };
        if theta <= 1.0 {
            return refused(format!("rope_theta is {theta}; it must be above 1"));
        }
        let mut rotary = Rotary::plain(theta);
        let Some(scaling) = object else { return Ok(rotary) };
        let [kind, old] = ["rope_type", "type"].map(|name| scaling.optional_text(name));
        match (kind?.or(old?).unwrap_or("default"), self.architecture) {
            ("default", _) => {}
            ("linear", _) => rotary.linear_factor = positive(&scaling, "factor")?,
            // It begins beyond the context, and no text is longer.
            ("dynamic", _) => drop(at_least_1(&scaling, "factor")?),
            ("llama3", _) => rotary.llama3 = Some(self.llama3(&scaling)?),
            // `su` is its name in older configurations of phi3, whose class makes it of `yarn`, too.
            ("longrope" | "su", _) | ("yarn", Architecture::Phi3) => {
                rotary.longrope = Some(self.longrope(&scaling)?);
            }
            ("yarn", _) => rotary.yarn = Some(self.yarn(&scaling)?),
            (other, _) => {
                return refused(format!(
                    "rope scaling {other:?} is not supported; supported are default, linear, dynamic, llama3, yarn and longrope"
                ));
            }
        }
        Ok(rotary)
    }

    fn original(&self, scaling: &Fields<'_>) -> Result<usize, BundleError> {
        let own = scaling.optional_count(ORIGINAL)?;
        match self.original.or(own).unwrap_or(self.max_positions) {
            0 => refused(format!("field {ORIGINAL:?} is 0; it must be above 0")),
            original => Ok(original),
        }
    }

    fn llama3(&self, scaling: &Fields<'_>) -> Result<Llama3Scaling, BundleError> {
        let read = Llama3Scaling {
            factor: positive(scaling, "factor")?,
            low_freq_factor: positive(scaling, "low_freq_factor")?,
            high_freq_factor: positive(scaling, "high_freq_factor")?,
            original_max_positions: self.original(scaling)?,
        };
        if read.low_freq_factor < read.high_freq_factor {
            return Ok(read);
        }
        refused(format!(
            "low_freq_factor is {}, and high_freq_factor {}: it must be the larger one",
            read.low_freq_factor, read.high_freq_factor
        ))
    }

    /// As in transformers' `_compute_yarn_parameters`. llama.cpp's `rope_yarn` has the same frequencies.
    fn yarn(&self, scaling: &Fields<'_>) -> Result<Yarn, BundleError> {
        // 0 counts as absent.
        let bound = |name: &str, usual: f64| match scaling.number(name, 0.0)? {
            0.0 => Ok(usual),
            _ => positive(scaling, name),
        };
        let original_max_positions = self.original(scaling)?;
        let factor = match scaling.optional_number("factor")? {
            Some(_) => at_least_1(scaling, "factor")?,
            None => self.max_positions as f64 / original_max_positions as f64,
        };
        let share = |name: &str| Ok::<_, BundleError>(scaling.optional_number(name)?.filter(|&m| m != 0.0));
        let (mscale, all) = (share("mscale")?, share("mscale_all_dim")?);
        let of = |share: f64| if factor <= 1.0 { 1.0 } else { 0.1 * share * factor.ln() + 1.0 };
        let scale = match (scaling.optional_number("attention_factor")?, mscale, all) {
            (Some(_), ..) => positive(scaling, "attention_factor")?,
            (None, Some(mscale), Some(all)) => of(mscale) / of(all),
            _ => of(1.0),
        };
        let (beta_fast, beta_slow) = (bound("beta_fast", 32.0)?, bound("beta_slow", 1.0)?);
        let truncate = scaling.flag("truncate", true)?;
        Ok(Yarn { factor, original_max_positions, beta_fast, beta_slow, truncate, scale })
    }

    /// As in transformers' `_compute_longrope_parameters`.
    fn longrope(&self, scaling: &Fields<'_>) -> Result<LongRope, BundleError> {
        let original_max_positions = self.original(scaling)?;
        let divisors = |name: &str| {
            let divisors = scaling.numbers(name)?;
            let wanted = self.dims / 2;
            if divisors.len() == wanted && divisors.iter().all(|divisor| FINITE.contains(divisor)) {
                return Ok(divisors);
            }
            let held = divisors.len();
            refused(format!(
                "{name} has {held} divisors; {} rotated dimensions need {wanted} between 1e-6 and 1e6",
                self.dims
            ))
        };
        let (short, long) = (divisors("short_factor")?, divisors("long_factor")?);
        let factor = match scaling.optional_number("factor")? {
            Some(factor) => factor,
            None => self.max_positions as f64 / original_max_positions as f64,
        };
        let scale = match scaling.optional_number("attention_factor")? {
            Some(_) => positive(scaling, "attention_factor")?,
            None if factor <= 1.0 || original_max_positions < 2 => 1.0,
            None => (1.0 + factor.ln() / (original_max_positions as f64).ln()).sqrt(),
        };
        Ok(LongRope { short, long, original_max_positions, scale })
    }
}

fn positive(scaling: &Fields<'_>, name: &str) -> Result<f64, BundleError> {
    within(scaling, name, FINITE)
}

fn at_least_1(scaling: &Fields<'_>, name: &str) -> Result<f64, BundleError> {
    within(scaling, name, 1.0..=1e6)
}

fn within(scaling: &Fields<'_>, name: &str, range: RangeInclusive<f64>) -> Result<f64, BundleError> {
    let number = scaling.required_number(name)?;
    if range.contains(&number) {
        return Ok(number);
    }
    let (least, most) = range.into_inner();
    refused(format!("field {name:?} is {number}; it must be between {least:e} and {most:e}"))
}
