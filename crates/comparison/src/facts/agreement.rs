//! Agreement of a run with the reference, and the tolerances for it.

use bundle::Precision;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};

use crate::plan::{Contender, Work};

/// Tolerances within which two computations count as the same, one set for each precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerance {
    /// Largest absolute difference of a logit, as a share of the reference's largest logit. The limit applies only to
    /// f32: at 16 bits, single logits may be far off without consequence.
    pub max_abs_share: Option<f32>,
    /// Mean Kullback–Leibler divergence from the reference's distribution, nats per position.
    pub mean_kl: f64,
    /// Share of positions whose most likely token is the reference's.
    pub top1: f64,
    /// Margin of a tie, in logits. If the reference prefers its own token by less than this, another token also counts
    /// as the reference's.
    pub tie: f32,
}

impl Tolerance {
    pub fn for_precision(precision: Precision) -> Tolerance {
        match precision {
            // Sums in another order move a logit of 30 by some 1e-4; a wrong operation by far more.
            Precision::F32 => Tolerance { max_abs_share: Some(2e-4), mean_kl: 1e-6, top1: 1.0, tie: 1e-3 },
            // 11 and 8 bits of significand give relative steps of 5e-4 and 4e-3 in every weight.
            Precision::F16 => Tolerance { max_abs_share: None, mean_kl: 0.005, top1: 0.98, tie: 0.05 },
            Precision::Bf16 => Tolerance { max_abs_share: None, mean_kl: 0.05, top1: 0.95, tie: 0.3 },
            // The reference uses the same codes and scales, or blocks, in f32. The difference is the kernels' own
            // arithmetic, in which activations may be rounded to 8 bits.
            Precision::Int8 | Precision::Int4 | Precision::File => {
                Tolerance { max_abs_share: None, mean_kl: 0.02, top1: 0.95, tie: 0.3 }
            }
            Precision::Nf4 => Tolerance { max_abs_share: None, mean_kl: 0.005, top1: 0.98, tie: 0.05 },
        }
    }
}

/// Largest difference of an ONNX file's output in f32, as a share of its largest number. Other orders of summation
/// move a classifier near a tie by far more than a decoder's logits: of PP-OCRv6's text recogniser, on a line whose
/// pixels are rotated, rten, OpenVINO, libtorch and tract are 1.3e-4 to 2.4e-4 from ONNX Runtime without
/// optimisation, all with a cosine of 1 - 2e-9. Products of fewer bits would differ by far more.
const OF_GRAPHS: f32 = 1e-3;

/// Vectors of fewer numbers, such as scores, have hardly a direction: only their distance is judged.
const MIN_NUMBERS_WITH_DIRECTION: usize = 16;

impl Tolerance {
    /// Largest distance of a vector from the reference's, as a share of the reference's longest: the distance
    /// of two vectors of equal length at the least cosine.
    pub fn distance(&self) -> f64 {
        (2.0 * (1.0 - self.cosine())).sqrt()
    }

    /// Least cosine of a vector with the reference's.
    pub fn cosine(&self) -> f64 {
        // In f32 the order of summation differs; at 16 and fewer bits every weight and activation is rounded.
        if self.max_abs_share.is_some() { 1.0 - 1e-5 } else { 0.99 }
    }

    /// The tolerance of a contender's outputs of this work. An ONNX file computes in the types that it
    /// stores, whatever precision the contender is asked for.
    pub fn for_work(contender: &Contender, work: &Work) -> Tolerance {
        let stored = if let Work::Graph(graph) = work { graph.stored.as_deref() } else { None };
        match stored {
            Some("f16") => Tolerance::for_precision(Precision::F16),
            Some("bf16") => Tolerance::for_precision(Precision::Bf16),
            Some("int8" | "uint8" | "int4") => Tolerance::for_precision(Precision::Int8),
            _ if matches!(work, Work::Graph(_)) => {
                Tolerance { max_abs_share: Some(OF_GRAPHS), ..Tolerance::for_contender(contender) }
            }
            _ => Tolerance::for_contender(contender),
        }
    }

    /// The tolerance of a contender: that of its weights' precision or of its cache's, whichever allows more. A cache
    /// in 16 bits moves logits as weights in 16 bits do.
    pub fn for_contender(contender: &Contender) -> Tolerance {
        let weights = Tolerance::for_precision(contender.precision);
        let cache = Tolerance::for_precision(contender.asked_cache());
        Tolerance {
            max_abs_share: weights.max_abs_share.and(cache.max_abs_share),
            mean_kl: weights.mean_kl.max(cache.mean_kl),
            top1: weights.top1.min(cache.top1),
            tie: weights.tie.max(cache.tie),
        }
    }
}

/// The cost of quantising: a run compared with the unquantised model in f32. It is a figure, not a gate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuantisationLoss {
    /// Kullback–Leibler divergence from the unquantised model's distribution, nats per position.
    #[serde(deserialize_with = "number")]
    pub mean_kl: f64,
    /// Share of positions whose most likely token is the unquantised model's.
    pub top1: f64,
}

/// The agreement of one run with the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The framework that gives the reference.
    pub reference: String,
    pub tolerance: Tolerance,
    /// How far its logits are from the reference's; `None` for work without logits.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub logits: Option<LogitAgreement>,
    /// How far its vectors are from the reference's; `None` for work without vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorAgreement>,
    /// Number of tokens in the timed iterations.
    pub timed_tokens: usize,
    /// Number of these tokens that the reference would not have chosen.
    pub timed_mismatches: usize,
    /// Number of these tokens that the run, by masked diffusion, would have unmasked in another step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub misplaced: usize,
    /// The cost of quantising; `None` at precisions that are not quantised.
    pub quantisation_loss: Option<QuantisationLoss>,
    /// The sha256 of its logits, which shows whether two versions of a framework compute the same bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The disagreement in words; `None` if the run agrees.
    pub broken: Option<String>,
}

/// The logits of one run compared with the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LogitAgreement {
    /// Number of positions whose logits were compared.
    pub positions: usize,
    /// Largest absolute difference of a logit. Not finite if a logit is not finite.
    #[serde(deserialize_with = "number")]
    pub max_abs: f64,
    /// Root of the mean squared difference of logits. NaN if a logit is NaN.
    #[serde(deserialize_with = "number")]
    pub rmse: f64,
    /// Mean Kullback–Leibler divergence from the reference's distribution, nats per position. NaN if a logit is NaN.
    #[serde(deserialize_with = "number")]
    pub mean_kl: f64,
    /// Share of positions that agree on the most likely token; ties count as agreement.
    pub top1: f64,
    /// The reference's largest logit by absolute value. `None` if it is not finite.
    pub largest: Option<f32>,
    /// Number of the run's logits that are not finite.
    #[serde(default)]
    pub not_finite: usize,
    /// Whether all logits of the reference are one number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uniform: bool,
    /// Number of log-probabilities that were compared, of a server that shows those of the most likely tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<usize>,
}

impl Agreement {
    /// With the tokens of the timed requests, which are compared later than the logits.
    pub fn with(self, tokens: &TokenAgreement) -> Agreement {
        let TokenAgreement { timed, mismatches, misplaced, .. } = *tokens;
        let with = Agreement { timed_tokens: timed, timed_mismatches: mismatches, misplaced, ..self };
        Agreement { broken: with.objection(), ..with }
    }

    /// Decides again whether the run agrees, with today's tolerance for the contender. Without the
    /// reference's largest logit the old decision stays. Ties were counted with the tolerance of that time.
    pub fn rejudged(self, tolerance: Tolerance) -> Agreement {
        let is_of_logits = self.logits.is_some_and(|logits| logits.largest.is_some());
        if !is_of_logits && self.vectors.is_none() {
            return self;
        }
        let judged = Agreement { tolerance, ..self };
        Agreement { broken: judged.objection(), ..judged }
    }

    /// Largest absolute difference of a logit, or of a component of a vector; 0 for other outputs, which are
    /// equal or not.
    pub fn max_abs(&self) -> f64 {
        let of_logits = self.logits.map(|logits| logits.max_abs);
        of_logits.or(self.vectors.map(|vectors| vectors.max_abs)).unwrap_or(0.0)
    }

    /// The disagreement in words.
    pub fn objection(&self) -> Option<String> {
        let (timed, mismatches, misplaced) = (self.timed_tokens, self.timed_mismatches, self.misplaced);
        let of_logits = self.logits.and_then(|logits| logits.objection(&self.tolerance));
        let of_vectors = || self.vectors.and_then(|vectors| vectors.objection(&self.tolerance));
        of_logits.or_else(of_vectors).or_else(|| {
            let tokens = TokenAgreement { timed, mismatches, misplaced, ..TokenAgreement::default() };
            tokens.objection(&self.tolerance)
        })
    }
}

/// The vectors of all timed requests of one run compared with the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VectorAgreement {
    /// Number of vectors that were compared.
    pub compared: usize,
    /// Number of vectors that are missing or of another size.
    pub unlike: usize,
    pub not_finite: usize,
    /// Largest absolute difference of a component.
    #[serde(deserialize_with = "number")]
    pub max_abs: f64,
    /// The reference's largest component by absolute value.
    #[serde(deserialize_with = "number")]
    pub largest: f64,
    /// Least cosine of a vector with the reference's.
    #[serde(deserialize_with = "number")]
    pub cosine: f64,
    /// Largest distance of a vector from the reference's: the root of the sum of squared differences.
    #[serde(default, deserialize_with = "number")]
    pub distance: f64,
    /// Length of the longest vector of the reference.
    #[serde(default, deserialize_with = "number")]
    pub longest: f64,
    /// Number of all components; counted for tensors only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub numbers: usize,
    /// Number of whole numbers and booleans that differ from the reference's; they must be equal.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unequal: usize,
    /// Rows of tensors, along the last dimension, and those of them whose largest number has the reference's place:
    /// the most likely class, token or letter.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows: usize,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub same_top: usize,
    /// Number of vectors whose numbers are all alike in the reference.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uniform: usize,
    /// Number of vectors without a finite number in the reference.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undefined: usize,
}

impl Default for VectorAgreement {
    fn default() -> VectorAgreement {
        VectorAgreement {
            compared: 0,
            unlike: 0,
            not_finite: 0,
            max_abs: 0.0,
            largest: 0.0,
            cosine: 1.0,
            distance: 0.0,
            longest: 0.0,
            numbers: 0,
            unequal: 0,
            rows: 0,
            same_top: 0,
            uniform: 0,
            undefined: 0,
        }
    }
}

/// Cosine of the angle between two vectors of one length; of a zero vector 1 with another zero vector and 0
/// with any other.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let squares = product(a, a) * product(b, b);
    if squares > 0.0 { product(a, b) / squares.sqrt() } else { f64::from(a == b) }
}

impl VectorAgreement {
    /// Adds a vector and the reference's.
    pub fn add(&mut self, ours: &[f32], theirs: &[f32]) {
        if ours.len() != theirs.len() {
            self.unlike += 1;
            return;
        }
        self.compared += 1;
        self.not_finite += ours.iter().filter(|x| !x.is_finite()).count();
        let (mut other, mut apart) = (0.0, 0.0);
        for (x, y) in ours.iter().zip(theirs) {
            let (x, y) = (f64::from(*x), f64::from(*y));
            other += y * y;
            apart += (x - y).powi(2);
            self.max_abs = self.max_abs.max((x - y).abs());
            self.largest = self.largest.max(y.abs());
        }
        (self.distance, self.longest) = (self.distance.max(apart.sqrt()), self.longest.max(other.sqrt()));
        if ours.len() >= MIN_NUMBERS_WITH_DIRECTION {
            self.cosine = self.cosine.min(cosine(ours, theirs));
        }
    }

    /// Counts a vector of the reference that says nothing: agreement with it shows nothing.
    pub fn look_at<T: Copy + Into<f64>>(&mut self, theirs: &[T]) {
        let mut numbers = theirs.iter().map(|&number| number.into());
        let Some(first) = numbers.next() else { return };
        if !first.is_finite() {
            self.undefined += usize::from(numbers.all(|number| !number.is_finite()));
        } else {
            self.uniform += usize::from(theirs.len() > 1 && numbers.all(|number| number == first));
        }
    }

    pub fn merge(&mut self, other: &VectorAgreement) {
        self.compared += other.compared;
        self.unlike += other.unlike;
        self.not_finite += other.not_finite;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.largest = self.largest.max(other.largest);
        self.cosine = self.cosine.min(other.cosine);
        self.distance = self.distance.max(other.distance);
        self.longest = self.longest.max(other.longest);
        self.numbers += other.numbers;
        self.unequal += other.unequal;
        self.rows += other.rows;
        self.same_top += other.same_top;
        self.uniform += other.uniform;
        self.undefined += other.undefined;
    }

    /// The exceeded tolerance, in words.
    pub fn objection(&self, tolerance: &Tolerance) -> Option<String> {
        let VectorAgreement {
            compared, unlike, not_finite, max_abs, largest, cosine, distance, longest, ..
        } = *self;
        // Tensors of a graph have many numbers, which are counted.
        let (one, many) = if self.numbers > 0 { ("an output", "outputs") } else { ("a vector", "vectors") };
        if compared == 0 || unlike > 0 {
            let all = compared + unlike;
            return Some(format!("{unlike} of {all} {many} are missing or of another size"));
        }
        if self.unequal > 0 {
            let unequal = self.unequal;
            return Some(format!("{unequal} whole numbers of its outputs are not the reference's"));
        }
        if not_finite > 0 {
            return Some(format!("{not_finite} numbers of its {many} are not finite"));
        }
        let limit = tolerance.max_abs_share.map(|share| f64::from(share) * largest.max(1.0));
        if let Some(limit) = limit.filter(|&limit| max_abs > limit) {
            return Some(format!("a number of {one} differs by {max_abs:.2e}, more than {limit:.2e}"));
        }
        let farthest = tolerance.distance() * longest;
        if distance > farthest {
            return Some(format!("{one} is {distance:.2e} from the reference's, more than {farthest:.2e}"));
        }
        (cosine < tolerance.cosine()).then(|| {
            format!("{one} has a cosine of {cosine:.6} with the reference's, below {}", tolerance.cosine())
        })
    }
}

impl LogitAgreement {
    fn objection(&self, tolerance: &Tolerance) -> Option<String> {
        if self.not_finite > 0 {
            return Some(format!("{} logits are not finite", self.not_finite));
        }
        if let Some(share) = tolerance.max_abs_share {
            let limit = f64::from(share * self.largest.unwrap_or_default().max(1.0));
            if self.max_abs > limit {
                return Some(format!("a logit differs by {:.2e}, more than {limit:.2e}", self.max_abs));
            }
        }
        if self.mean_kl > tolerance.mean_kl {
            return Some(format!(
                "mean KL divergence {:.2e} exceeds {:.0e}",
                self.mean_kl, tolerance.mean_kl
            ));
        }
        (self.top1 < tolerance.top1).then(|| {
            let (top1, limit) = (self.top1 * 100.0, tolerance.top1 * 100.0);
            format!("top-1 agreement {top1:.1} % is below {limit:.0} %")
        })
    }
}

/// The tokens of a process's timed requests, compared with those that the reference would have chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenAgreement {
    /// Number of tokens in the timed requests.
    pub timed: usize,
    /// Number of these that the reference would not have chosen.
    pub mismatches: usize,
    /// Number of these that the process, by masked diffusion, would have unmasked in another step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub misplaced: usize,
    /// Number of logits of drawn tokens that it was asked for behind a timed step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drawn: usize,
    /// Number of these that are farther from the reference's than the tolerance allows, where it limits single logits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub beyond: usize,
    /// The largest difference of one of these, as a share of the reference's largest logit of its sequence.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub farthest: f64,
}

fn is_nothing(share: &f64) -> bool {
    *share == 0.0
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Share of tokens that may be unmasked in another step in f32. Confidences that differ only in their last
/// digits change places with the order of summation.
const MISPLACED: f64 = 0.05;

impl TokenAgreement {
    /// Adds those of another request.
    pub fn add(&mut self, other: &TokenAgreement) {
        self.timed += other.timed;
        self.mismatches += other.mismatches;
        self.misplaced += other.misplaced;
        self.drawn += other.drawn;
        self.beyond += other.beyond;
        self.farthest = self.farthest.max(other.farthest);
    }

    /// The disagreement in words, if more tokens differ than the tolerance allows.
    pub fn objection(&self, tolerance: &Tolerance) -> Option<String> {
        let TokenAgreement { timed, mismatches, misplaced, drawn, beyond, farthest } = *self;
        if let Some(share) = tolerance.max_abs_share.filter(|_| beyond > 0) {
            return Some(format!(
                "{beyond} of {drawn} logits that were drawn behind timed steps differ by up to {farthest:.2e} of the \
                 largest, and {share:.0e} is allowed"
            ));
        }
        let allowed = ((1.0 - tolerance.top1) * timed as f64).floor() as usize;
        if mismatches > allowed {
            return Some(format!("{mismatches} of {timed} timed tokens are not the reference's"));
        }
        let is_exact = tolerance.max_abs_share.is_some();
        (is_exact && misplaced as f64 > MISPLACED * timed as f64)
            .then(|| format!("{misplaced} of {timed} timed tokens would have been unmasked in another step"))
    }
}

// How well a model predicts a text, and how well it searches.

/// The score of one engine on a text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TextScore {
    /// Number of predicted tokens: all but the first of each window.
    pub predicted: usize,
    /// Mean negative log-likelihood of the text's tokens, nats.
    pub nll: f64,
    /// Perplexity: exp(nll) (Jelinek and others 1977), the number of equally likely tokens that would be as uncertain.
    /// It depends on the tokenizer.
    pub perplexity: f64,
    /// Kullback–Leibler divergence from the reference's distribution, nats per token; `None` without a
    /// reference.
    pub mean_kl: Option<f64>,
    /// Share of positions whose most likely token is the reference's, exactly.
    pub top1: Option<f64>,
}

/// The quality of one engine at its precision.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QualityScore {
    Text(TextScore),
    Retrieval(RetrievalScore),
}

impl QualityScore {
    /// The score of a model that continues texts.
    pub fn text(self) -> Option<TextScore> {
        match self {
            QualityScore::Text(score) => Some(score),
            QualityScore::Retrieval(_) => None,
        }
    }

    /// The score of a model that encodes texts.
    pub fn retrieval(self) -> Option<RetrievalScore> {
        match self {
            QualityScore::Text(_) => None,
            QualityScore::Retrieval(score) => Some(score),
        }
    }
}

/// The vectors or scores of one engine compared with those of the reference in f32, on the bundled queries
/// and documents.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalScore {
    /// Number of vectors that were compared. For a reranker, a query's scores of all documents are one
    /// vector.
    pub compared: usize,
    /// Mean cosine of a vector with the reference's.
    pub mean_cosine: f64,
    /// Least cosine of a vector with the reference's.
    pub min_cosine: f64,
    /// Share of the ten best documents of the reference that are among the engine's ten best, mean over
    /// queries. `None` without a search.
    pub top10: Option<f64>,
    /// Kendall's τ-b (Kendall 1945) between the orders of all documents, mean over queries. `None` without a
    /// search.
    pub kendall_tau: Option<f64>,
}

// Reads values that were written earlier.

/// Reads a document of this schema. Everything that is not a field of `T` is skipped, so that no text takes many
/// times its size of memory. The error is one sentence; it says what the document is not.
pub fn document<T: DeserializeOwned>(text: &str, known: u32, what: &str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Head {
        schema: Option<u64>,
    }
    let refused = |error: serde_json::Error| {
        let text = error.to_string();
        // The place of a field that is not as it must be says nothing to people.
        let end = text.rfind(" at line ").filter(|_| error.is_data()).unwrap_or(text.len());
        format!("it is not {what}: {}", &text[..end])
    };
    let Head { schema } = serde_json::from_str(text).map_err(refused)?;
    let found = schema.ok_or("it names no schema")?;
    if found == u64::from(known) {
        return serde_json::from_str(text).map_err(refused);
    }
    let again = if found < u64::from(known) { "measure again, or " } else { "" };
    Err(format!(
        "its schema is {found}, and this program reads {known}: {again}use the release that wrote it"
    ))
}

/// Reads a number that may be `null`: JSON has no number that is not finite.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads a distance that may be `null`: JSON has no infinity.
pub fn distance<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::<f32>::deserialize(from)?.unwrap_or(f32::INFINITY))
}

/// Reads an interval. Its upper end may be infinite.
pub fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(f64, f64)>, D::Error> {
    let ends = Option::<(Option<f64>, Option<f64>)>::deserialize(from)?;
    Ok(ends.map(|(low, high)| (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_schema_is_refused_in_one_sentence() {
        let of = |text| document::<std::collections::BTreeMap<String, u32>>(text, 4, "a map").map(drop);
        assert_eq!(of("{\"schema\": 4}"), Ok(()));
        let newer = "its schema is 5, and this program reads 4: use the release that wrote it";
        assert_eq!(of("{\"schema\": 5}"), Err(newer.to_owned()));
        let older =
            "its schema is 3, and this program reads 4: measure again, or use the release that wrote it";
        assert_eq!(of("{\"schema\": 3}"), Err(older.to_owned()));
        assert_eq!(of("{}"), Err("it names no schema".to_owned()));
        let other = "it is not a map: invalid type: string \"x\", expected u32";
        assert_eq!(of("{\"schema\": 4, \"a\": \"x\"}"), Err(other.to_owned()));
    }
}
