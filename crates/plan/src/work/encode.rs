//! Texts to vectors, or to scores.

use bundle::{ModelConfig, Pooled, Scored};
use protocol::{EncodeTask, EncodeWork, KvCache, Output, Pooling, Sample, TextBatch};
use serde::{Deserialize, Serialize};

use super::{Describe, Proof, WorkKind};
use crate::{Failure, Prompt, Request, Result};

/// Sizes of batches where none is asked for: a single text, and many.
const BATCHES: [usize; 2] = [1, 32];

/// Batches of texts, a case each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Encode {
    pub batches: Vec<Batch>,
    pub task: EncodeTask,
    /// Numbers that each text becomes, or each of its tokens.
    pub width: Width,
}

/// Numbers that each text becomes, or each of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Width {
    OfText(usize),
    OfToken(usize),
}

/// Texts that are encoded together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub name: String,
    /// The token ids of each text.
    pub texts: Vec<Vec<u32>>,
}

/// The task of an encoder: batches of these texts, pooled as the model's files say.
pub(super) fn resolve(
    request: &Request,
    config: &ModelConfig,
    (texts, pooled): (Vec<Prompt>, Option<Pooled>),
) -> Result<Encode> {
    let model = request.model();
    let refuse = |what: String| Err(Failure::usage(format!("{model} encodes texts: {what}")));
    let arms = &request.study.arms;
    let of_decoders = [
        ("--context", request.context.iter().any(|&tokens| tokens > 0)),
        ("--kv-cache", request.kv_cache == KvCache::Off || arms.iter().any(|arm| arm.kv_cache.is_some())),
        ("perplexity", request.study.text),
        ("--new-tokens", !request.new_tokens.is_empty()),
        ("--chat", request.chat),
        ("--steps", !request.denoise.is_default()),
        ("--shards", request.shards.iter().any(|&shards| shards > 1)),
    ];
    if let Some((flag, _)) = of_decoders.iter().find(|(_, is_given)| *is_given) {
        return refuse(format!("{flag} is for models that continue them"));
    }
    let (task, width) = task(config, pooled).ok_or_else(|| {
        Failure::usage(format!(
            "{model} encodes texts, but its files do not say how the vectors of tokens are pooled \
             (1_Pooling/config.json); `photofinish embed` takes --pooling cls|mean|max|last"
        ))
    })?;
    for text in &texts {
        check(&text.tokens, &text.name, config)?;
    }
    let sizes = match request.batch.first() {
        Some(&size) => vec![size as usize],
        None => BATCHES.to_vec(),
    };
    Ok(Encode { batches: sizes.into_iter().map(|size| Batch::new(&texts, size)).collect(), task, width })
}

/// What the model is for: scores where it has a head, else vectors as its files say. `None` where they do not say.
pub fn task(config: &ModelConfig, pooled: Option<Pooled>) -> Option<(EncodeTask, Width)> {
    match config.encoder.as_ref().and_then(|encoder| encoder.head.as_ref()) {
        Some(head) => Some((
            EncodeTask::Score,
            match head.of {
                Scored::Texts(_) => Width::OfText(head.labels),
                Scored::Tokens => Width::OfToken(head.labels),
            },
        )),
        None => {
            let Pooled { pooling, normalise, .. } = pooled?;
            let task = EncodeTask::Embed { pooling: self::pooling(pooling), normalise };
            Some((task, Width::OfText(config.hidden_size)))
        }
    }
}

impl Width {
    /// Numbers of a text of so many tokens.
    pub fn of(self, tokens: usize) -> usize {
        match self {
            Width::OfText(width) => width,
            Width::OfToken(width) => width * tokens,
        }
    }
}

/// The way of pooling as workers are told.
pub fn pooling(pooling: bundle::Pooling) -> Pooling {
    match pooling {
        bundle::Pooling::Cls => Pooling::Cls,
        bundle::Pooling::Mean => Pooling::Mean,
        bundle::Pooling::Max => Pooling::Max,
        bundle::Pooling::Last => Pooling::Last,
    }
}

/// The kind of work of batches of so many texts.
pub fn kind(sizes: impl Iterator<Item = usize> + Clone) -> WorkKind {
    match (sizes.clone().any(|texts| texts == 1), sizes.clone().any(|texts| texts > 1)) {
        (true, true) => WorkKind::Encoding,
        (true, false) => WorkKind::SingleText,
        (false, _) => WorkKind::ManyTexts,
    }
}

/// Refuses a text that the model cannot encode.
pub fn check(tokens: &[u32], name: &str, config: &ModelConfig) -> Result<()> {
    if tokens.is_empty() {
        return Err(Failure::usage(format!("{name} is empty: there is nothing to encode")));
    }
    let (length, positions) = (tokens.len(), config.max_positions);
    if length > positions {
        return Err(Failure::usage(format!(
            "{name} has {length} tokens, more than the model's {positions} positions; --prompt-tokens {positions} cuts it"
        )));
    }
    Ok(())
}

impl Batch {
    /// So many of the texts, each in its turn. A single one is that of median length.
    fn new(texts: &[Prompt], size: usize) -> Batch {
        let chosen: Vec<Vec<u32>> = if size == 1 {
            let mut sorted: Vec<&Vec<u32>> = texts.iter().map(|text| &text.tokens).collect();
            sorted.sort_by_key(|tokens| tokens.len());
            sorted.get(sorted.len() / 2).map(|&tokens| tokens.clone()).into_iter().collect()
        } else {
            texts.iter().map(|text| text.tokens.clone()).cycle().take(size).collect()
        };
        let name = if size == 1 { "1 text".to_owned() } else { format!("{size} texts") };
        Batch { name, texts: chosen }
    }

    fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }
}

impl Describe for Encode {
    fn kind(&self) -> WorkKind {
        kind(self.batches.iter().map(|batch| batch.texts.len()))
    }

    fn cases(&self) -> usize {
        self.batches.len()
    }

    fn case_name(&self, case: usize) -> &str {
        self.batches.get(case).map_or("", |batch| &batch.name)
    }

    fn case_noun(&self) -> &'static str {
        "batch"
    }

    fn case_tokens(&self, case: usize) -> usize {
        self.batches.get(case).map_or(0, Batch::tokens)
    }

    fn batch(&self) -> usize {
        self.batches.iter().map(|batch| batch.texts.len()).max().unwrap_or(1)
    }

    fn size(&self, case: usize) -> (usize, usize) {
        let texts = self.batches.get(case).map_or(0, |batch| batch.texts.len());
        (texts, self.case_tokens(case))
    }

    fn kept_positions(&self, _: usize) -> usize {
        0
    }

    fn least_activations(&self, config: &ModelConfig) -> u64 {
        let tokens = self.batches.iter().map(Batch::tokens).max().unwrap_or(0) as u64;
        // The input of a layer, and the widest of what is computed from it: queries, keys and values, or the MLP's.
        let wide = (3 * config.hidden_size).max(config.intermediate_size) as u64;
        tokens.saturating_mul(4 * (config.hidden_size as u64 + wide))
    }

    fn marks(&self) -> usize {
        1
    }

    fn words(&self) -> String {
        let sizes: Vec<String> = self.batches.iter().map(|batch| batch.texts.len().to_string()).collect();
        let tokens: Vec<String> = self.batches.iter().map(|batch| batch.tokens().to_string()).collect();
        format!("batches of {} texts, of {} tokens together", sizes.join(" and "), tokens.join(" and "))
    }

    fn mark_noun(&self) -> &'static str {
        "batch"
    }

    fn asked(&self, _: KvCache, _: &[Output]) -> protocol::Work {
        self.of_reference()
    }

    fn of_reference(&self) -> protocol::Work {
        let case = |batch: &Batch| TextBatch { texts: batch.texts.clone(), types: Vec::new() };
        let cases = self.batches.iter().map(case).collect();
        protocol::Work::Encode(EncodeWork { cases, task: self.task })
    }

    fn is_whole(&self, case: usize, output: &Output) -> bool {
        let Output::Vectors(output) = output else { return false };
        let texts = self.batches.get(case).map_or(&[][..], |batch| &batch.texts);
        let is_vector = |(vector, text): (&Vec<f32>, &Vec<u32>)| {
            vector.len() == self.width.of(text.len()) && vector.iter().all(|number| number.is_finite())
        };
        output.vectors.len() == texts.len() && output.vectors.iter().zip(texts).all(is_vector)
    }

    fn has_all_sequences(&self, sample: &Sample) -> bool {
        // Every vector is compared with the reference's when it arrives, and is not kept.
        matches!(sample.output, Output::Vectors(_))
    }

    fn is_done(&self, sample: &Sample) -> bool {
        sample.marks_ns.len() == 1 && matches!(sample.output, Output::Vectors(_))
    }

    fn stand_ins(&self) -> Vec<Output> {
        Vec::new()
    }

    fn judged_positions(&self, _: usize) -> Option<usize> {
        None
    }

    fn is_forced(&self) -> bool {
        false
    }

    fn proof(&self) -> Proof {
        Proof::NotSent
    }
}
