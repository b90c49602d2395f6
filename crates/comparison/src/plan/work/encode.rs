//! Texts to vectors, or to scores.

mod texts;

use bundle::{ModelConfig, Pooled};
use clap::{Args, ValueEnum};
use configs::SuitePrompt;
use protocol::{EncodeTask, EncodeWork, Input, KvCache, Load, Output, Sample, Step, TextBatch, Way};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
pub use texts::{Batch, LengthsAsked, Made, Width, check, cut, longest_taken, made, usual_texts};
use texts::{Lengths, chosen};

use super::{Describe, Proof, WorkKind};
use crate::plan::chat::Written;
use crate::plan::draft::Engines;
use crate::plan::serving::UsualRequests;
use crate::plan::sweep::{SweepKind, usual};
use crate::plan::{Failure, Prompt, Request, Result, work};

/// The topic of its flags in the help, and their heading.
pub const TOPIC: (&str, &str) = ("encoders", "Encoders");
/// Its flags, where they are refused.
pub(super) const FLAGS: &str = "--task, --pooling, --lengths and the other flags of encoders";
/// Its part of the help on --batch, and on `ab`.
pub const BATCH_HELP: &str = "of encoders, sizes of batches of texts [default: 1,32]";
pub const PADDING_HELP: &str = "An encoder's batches unpadded against padded to the longest text";
/// The bundled texts, and pairs of texts, under `configs`.
pub const TEXTS: &str = "texts/encoders.txt";
pub const PAIRS: &str = "texts/pairs.jsonl";
/// Default batch sizes: a single text, and many.
pub const BATCHES: [usize; 2] = [1, 32];
/// Requests of several callers.
const USUAL_REQUESTS: UsualRequests = UsualRequests { each: 8, least: 32 };

/// Batches of texts, a case each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Encode {
    pub batches: Vec<Batch>,
    pub task: EncodeTask,
    /// What the worker computes from the vectors of the task, untimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Number of numbers for each text, or for each of its tokens.
    pub width: Width,
    /// If given, one of several callers makes each request, for a text each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// Settings for texts to encode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct EncodeAsked {
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files
    /// say]
    #[arg(long, value_enum, value_name = "embed|rerank|classify", hide_possible_values = true,
          help_heading = TOPIC.1, hide_short_help = true)]
    pub task: Option<TaskAsked>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "VectorsAsked::is_default")]
    pub vectors: VectorsAsked,
    /// Lengths of an encoder's texts in tokens: real, fixed:N, or uniform:A-B, drawn for each text [default: real]
    #[arg(long, value_name = "real|fixed:N|uniform:A-B", help_heading = TOPIC.1, hide_short_help = true)]
    pub lengths: LengthsAsked,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = TOPIC.1, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncate: bool,
    /// Time an encoder's tokenizer, too: from text to vector, with the crate tokenizers for all frameworks
    #[arg(long, help_heading = TOPIC.1, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_tokenizer: bool,
}

impl EncodeAsked {
    pub fn is_default(&self) -> bool {
        *self == EncodeAsked::default()
    }

    /// Whether a study may choose the lengths of texts: none are asked for, and tokenising is not timed.
    pub(crate) fn has_real_lengths(&self) -> bool {
        self.lengths == LengthsAsked::Real && !self.include_tokenizer
    }
}

/// How the vectors of texts are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct VectorsAsked {
    /// How an encoder makes the vector of a text from those of its tokens [default: as its files say, else mean]
    #[arg(long, value_enum, value_name = "WAY", help_heading = TOPIC.1, hide_short_help = true)]
    pub pooling: Option<PoolingAsked>,
    /// Whether an encoder's vectors are divided by their length [default: as its files say]
    #[arg(long, value_name = "true|false", help_heading = TOPIC.1, hide_short_help = true)]
    pub normalise: Option<bool>,
    /// Put this prompt of an encoder's files in front of each text, or none [default: default_prompt_name of its files]
    #[arg(long, value_name = "NAME|none", help_heading = TOPIC.1, hide_short_help = true)]
    pub prompt_name: Option<String>,
}

impl VectorsAsked {
    pub fn is_default(&self) -> bool {
        *self == VectorsAsked::default()
    }
}

/// A way to make one vector of a text from those of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PoolingAsked {
    /// The first token's
    Cls,
    /// The mean
    Mean,
    /// The largest of each component
    Max,
    /// The last token's
    Last,
    /// The sum, divided by the root of the number of tokens
    MeanSqrtLen,
    /// The mean with the place of each token as its weight
    WeightedMean,
}

impl PoolingAsked {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn way(self) -> Way {
        match self {
            PoolingAsked::Cls => Way::Cls,
            PoolingAsked::Mean => Way::Mean,
            PoolingAsked::Max => Way::Max,
            PoolingAsked::Last => Way::Last,
            PoolingAsked::MeanSqrtLen => Way::MeanSqrtLen,
            PoolingAsked::WeightedMean => Way::WeightedMean,
        }
    }
}

/// The task of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TaskAsked {
    /// Vectors
    Embed,
    /// Scores of texts, such as pairs of a question and an answer
    Rerank,
    /// Scores of the tokens of texts
    Classify,
}

impl TaskAsked {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The work of an encoder: batches of these texts, pooled as the model's files say.
pub(super) fn resolve(
    request: &Request,
    config: &ModelConfig,
    (mut texts, pooled): (Vec<Prompt>, Option<Pooled>),
    seed: u64,
) -> Result<Encode> {
    let model = request.model();
    let refuse = |what: String| Err(Failure::usage(format!("{model} encodes texts: {what}")));
    let of_decoders = [
        ("--context", request.has_context()),
        ("--kv-cache", request.has_cache_switch()),
        ("--new-tokens", !request.new_tokens.is_empty()),
        ("--prefill-chunk", !request.prefill_chunk.is_empty()),
        ("--shared-prefix", request.shared_prefix > 0),
        ("--chat", request.chat),
        ("--steps", !request.denoise.is_default()),
        ("--prompt-lengths", !request.prompt_lengths.is_empty()),
        ("--tensor-parallel", request.shards.iter().any(|&shards| shards > 1)),
    ];
    if let Some((flag, _)) = of_decoders.iter().find(|(_, is_given)| *is_given) {
        return refuse(format!("{flag} is for models that continue them"));
    }
    let EncodeAsked { task, vectors, lengths, truncate, .. } = &request.encode;
    let Made { task, steps, width, .. } = made(config, pooled.as_ref(), (*task, vectors))
        .map_err(|why| Failure::usage(format!("{model} {why}")))?;
    let lengths = match (*lengths, request.prompt_tokens.first()) {
        (LengthsAsked::Real, Some(&tokens)) => LengthsAsked::Fixed(tokens),
        (lengths, None) => lengths,
        _ => {
            return refuse("--lengths and --prompt-tokens both say how long texts are: leave one out".into());
        }
    };
    let (longest, positions) = (lengths.longest().unwrap_or(0), config.max_positions);
    if longest > positions {
        return refuse(format!(
            "texts of {longest} tokens are longer than the model's {positions} positions"
        ));
    }
    for text in &mut texts {
        if *truncate {
            cut([&mut text.tokens, &mut text.types], longest_taken(config, pooled.as_ref()));
        }
        // The tokenizer may distinguish types that the model does not.
        if config.token_types() < 2 {
            text.types.clear();
        }
        // If lengths are asked for, a long text is cut.
        let kept = if lengths == LengthsAsked::Real { text.tokens.len() } else { text.tokens.len().min(1) };
        check(&text.tokens[..kept], &text.name, config)?;
    }
    let mut sizes = BATCHES.to_vec();
    if !request.batch.is_empty() {
        sizes = request.batch.iter().map(|&size| size as usize).collect();
        sizes.sort_unstable();
        sizes.dedup();
    }
    let load = request.serving.load(USUAL_REQUESTS, seed)?;
    if let Some(load) = load {
        if !request.batch.is_empty() {
            return refuse(
                "each caller asks for one text: leave --batch out; --requests sets those of a turn".into(),
            );
        }
        sizes = vec![load.requests];
    }
    let mut drawn = Lengths::new(lengths, seed);
    Ok(Encode {
        load,
        batches: sizes.into_iter().map(|size| Batch::new(&texts, size, &mut drawn)).collect(),
        task,
        steps,
        width,
    })
}

/// The kind of work of batches of so many texts.
pub fn kind(sizes: impl Iterator<Item = usize> + Clone) -> WorkKind {
    match (sizes.clone().any(|texts| texts == 1), sizes.clone().any(|texts| texts > 1)) {
        (true, true) => WorkKind::Encoding,
        (true, false) => WorkKind::SingleText,
        (false, _) => WorkKind::ManyTexts,
    }
}

/// Rejects a pair of texts that is not to be encoded, and one without texts.
pub(crate) fn check_pair(prompt: &SuitePrompt, name: &str, config: &ModelConfig) -> Result<()> {
    if prompt.pair.is_none() || config.encodes() && prompt.text.is_some() {
        return Ok(());
    }
    Err(Failure::usage(format!("{name} is a pair of texts: pairs are for encoders, and both have a text")))
}

/// Rejects settings for texts to encode, as the model continues them.
pub(super) fn refuse(request: &Request) -> Result<()> {
    if request.encode.is_default() {
        return Ok(());
    }
    Err(Failure::usage(format!("{} continues texts: {FLAGS} are for models such as minilm", request.model())))
}

impl Encode {
    /// The same work of these batches.
    pub fn of(&self, cases: Vec<TextBatch>) -> protocol::Work {
        protocol::Work::Encode(EncodeWork { cases, task: self.task, steps: self.steps.clone() })
    }

    /// Whether each text has finite numbers, as many as the model gives.
    pub fn are_whole(&self, vectors: &[Vec<f32>], texts: &[Vec<u32>]) -> bool {
        let is_whole = |(vector, text): (&Vec<f32>, &Vec<u32>)| {
            vector.len() == self.width.numbers(text.len()) && vector.iter().all(|number| number.is_finite())
        };
        vectors.len() == texts.len() && vectors.iter().zip(texts).all(is_whole)
    }

    /// The texts of each batch in writing; `texts` are the ones that its ids were made from.
    fn written(&self, request: &Request, texts: &[Prompt]) -> Result<Vec<Vec<Written>>> {
        if request.encode.lengths != LengthsAsked::Real || !request.prompt_tokens.is_empty() {
            return Err(Failure::usage(
                "--include-tokenizer times the texts as they are written, and they were to be cut to a length: leave out \
                 --lengths and --prompt-tokens",
            ));
        }
        let written = |text: &Prompt| match &text.text {
            Some(written) => Ok(Written { text: written.clone(), pair: text.pair.clone() }),
            None => Err(Failure::usage(format!(
                "{} is given as token ids: --include-tokenizer times texts",
                text.name
            ))),
        };
        let of_batch = |batch: &Batch| chosen(texts, batch.texts.len()).into_iter().map(written).collect();
        self.batches.iter().map(of_batch).collect()
    }

    /// A batch with other tokens between the first and the last of each text, which mark its beginning and end: drawn from
    /// those of all texts.
    fn changed(&self, seed: u64, case: usize) -> Option<Batch> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let texts = self.batches.iter().flat_map(|batch| &batch.texts);
        let inner = |text: &Vec<u32>| text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_vec();
        let tokens: Vec<u32> = texts.flat_map(inner).collect();
        let mut batch = self.batches.get(case)?.clone();
        for text in &mut batch.texts {
            let last = text.len() - 1;
            for token in text.iter_mut().take(last).skip(1) {
                *token = tokens[random.random_range(0..tokens.len())];
            }
        }
        Some(batch)
    }
}

impl Describe for Encode {
    fn kind(&self) -> WorkKind {
        if let Some(load) = self.load {
            return work::kind(load);
        }
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

    fn least_activations(&self, config: &ModelConfig) -> u64 {
        let tokens = self.batches.iter().map(Batch::tokens).max().unwrap_or(0) as u64;
        // The input of a layer, and the widest result of it: queries, keys and values, or the MLP's.
        let wide = (3 * config.hidden_size).max(config.mlp(0).width) as u64;
        tokens.saturating_mul(4 * (config.hidden_size as u64 + wide))
    }

    fn numbers(&self, case: usize) -> usize {
        let texts = self.batches.get(case).map_or(&[][..], |batch| &batch.texts);
        texts.iter().map(|text| self.width.numbers(text.len())).sum()
    }

    fn words(&self) -> String {
        if let Some(load) = self.load {
            let ((texts, tokens), words) = (self.size(0), work::words(load));
            return format!("{words} for a text each, of {} tokens on average", tokens / texts.max(1));
        }
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
        self.of(self.batches.iter().map(Batch::given).collect())
    }

    fn is_whole(&self, case: usize, output: &Output) -> bool {
        let Output::Vectors(output) = output else { return false };
        self.batches.get(case).is_some_and(|batch| self.are_whole(&output.vectors, &batch.texts))
    }

    fn has_all_sequences(&self, sample: &Sample) -> bool {
        // Every vector is compared with the reference's when it arrives, and is not kept.
        matches!(sample.output, Output::Vectors(_))
    }

    fn is_done(&self, sample: &Sample) -> bool {
        let has_calls = work::has_all(self.load, sample);
        sample.marks_ns.len() == 1 && has_calls && matches!(sample.output, Output::Vectors(_))
    }

    fn fed(&self, _: &[Output]) -> Vec<TextBatch> {
        self.batches.iter().map(Batch::given).collect()
    }

    fn load(&self) -> Option<Load> {
        self.load
    }

    fn tokenised(&self, request: &Request, texts: &[Prompt]) -> Result<Option<Vec<Vec<Written>>>> {
        request.encode.include_tokenizer.then(|| self.written(request, texts)).transpose()
    }

    fn proof(&self) -> Proof {
        Proof::OtherInputs
    }

    fn other_input(&self, seed: u64, case: usize) -> Option<Input> {
        Some(Input::Texts(self.changed(seed, case)?.texts))
    }

    fn computing(&self, asked: &[(usize, &Input)]) -> Option<protocol::Work> {
        let batch = |(case, input): &(usize, &Input)| {
            let Input::Texts(texts) = input else { return None };
            Some(TextBatch { texts: texts.clone(), types: self.batches.get(*case)?.types.clone() })
        };
        asked.iter().map(batch).collect::<Option<_>>().map(|batches| self.of(batches))
    }
}

// Its studies.

/// Help on the sweep of this kind.
pub(crate) const SWEEP: &str =
    "Texts to vectors or scores, with an encoder, over --batch and --prompt-tokens";

impl Request {
    /// Whether its models encode texts, rather than continuing them. A study has one kind.
    pub(crate) fn encodes(&self, engines: &dyn Engines) -> Result<bool> {
        let mut of_kind = [None; 2];
        for model in &self.models {
            of_kind[usize::from(engines.encodes(model)?)].get_or_insert(model);
            if let [Some(decoder), Some(encoder)] = of_kind {
                return Err(Failure::usage(format!(
                    "{encoder} encodes texts and {decoder} continues them: a study takes models of one kind"
                )));
            }
        }
        Ok(of_kind[1].is_some())
    }
}

/// Takes an encoder if no model was named.
fn take_encoder(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec!["minilm".to_owned()];
    }
}

/// Fills in the axes of a study of texts.
pub(crate) fn complete_embedding(request: &mut Request) {
    take_encoder(request);
    usual(&mut request.batch, &[1, 8, 32]);
    if request.encode.has_real_lengths() {
        usual(&mut request.prompt_tokens, &[32, 128]);
    }
}

/// Fills in the axes of a study that other models have, too.
pub(crate) fn complete(kind: SweepKind, request: &mut Request) -> Result<()> {
    match kind {
        SweepKind::Precision => {
            usual(&mut request.precisions, &bundle::Precision::MADE);
            request.study.text = true;
        }
        SweepKind::Memory => {
            usual(&mut request.batch, &[1, 8, 32]);
            if request.encode.has_real_lengths() {
                usual(&mut request.prompt_tokens, &[128]);
            }
            // Memory is the same on a noisy machine.
            request.accept_noise = true;
        }
        SweepKind::Size if request.models.len() < 2 => {
            return Err(Failure::usage(format!(
                "{} encodes texts: a sweep over sizes of encoders takes --model several times",
                request.model()
            )));
        }
        SweepKind::Size => {}
        _ => {
            return Err(Failure::usage(format!(
                "{} encodes texts, and `sweep {}` is for models that continue them: there are `sweep embed`, \
                 `sweep precision`, `sweep memory` and `sweep size`",
                request.model(),
                kind.name()
            )));
        }
    }
    Ok(())
}

/// Fills in the encoder and the batch of `sweep padding`.
pub(crate) fn complete_padding(request: &mut Request) -> Result<()> {
    take_encoder(request);
    usual(&mut request.batch, &[32]);
    if request.batch.contains(&1) {
        return Err(Failure::usage(
            "a single text has no padding: `sweep padding` takes a --batch of 2 or more",
        ));
    }
    Ok(())
}

/// Why its models have no study of all optimisations.
pub(crate) fn no_optimised(request: &Request) -> Failure {
    Failure::usage(format!(
        "{} encodes texts: `sweep optimised` switches the KV cache among others, and is for models that continue \
         texts; `sweep half`, `sweep jit` and `sweep padding` take an encoder",
        request.model()
    ))
}

#[cfg(test)]
mod tests {
    use protocol::Pooling;

    use super::*;

    #[test]
    fn each_request_has_other_texts_of_the_same_lengths() {
        let texts = vec![vec![1, 5, 6, 7, 8, 9, 2], vec![1, 2], vec![1, 10, 11, 12, 13, 2]];
        let batch = Batch { name: "3 texts".into(), texts: texts.clone(), types: Vec::new() };
        let task = EncodeTask::Embed { pooling: Pooling::Mean, normalise: true };
        let work =
            Encode { batches: vec![batch], task, steps: Vec::new(), width: Width::OfText(8), load: None };
        let inputs = [1, 2].map(|seed| work.other_input(seed, 0).unwrap());
        let asked = work.computing(&[(0, &inputs[0]), (0, &inputs[1])]).unwrap();
        let protocol::Work::Encode(asked) = asked else { panic!("{asked:?}") };
        assert_eq!(asked.cases.len(), 2);
        for (input, case) in inputs.iter().zip(&asked.cases) {
            assert_eq!(input, &Input::Texts(case.texts.clone()));
            assert_ne!(case.texts, texts);
            for (changed, text) in case.texts.iter().zip(&texts) {
                assert_eq!((changed.len(), changed[0], changed.last()), (text.len(), text[0], text.last()));
            }
        }
        assert_ne!(inputs[0], inputs[1]);
        assert_eq!(Some(&inputs[0]), work.other_input(1, 0).as_ref());
    }

    #[test]
    fn a_batch_is_timed_from_the_texts_that_its_ids_are_of() {
        let text = |text: &str, tokens: usize| Prompt {
            name: text.into(),
            text: Some(text.into()),
            pair: None,
            chat: None,
            tokens: vec![1; tokens],
            types: Vec::new(),
            special: [0, 0],
            audio: None,
        };
        let texts = [text("long", 9), text("short", 2), text("middle", 5)];
        let mut lengths = Lengths::new(LengthsAsked::Real, 1);
        let batches = [1, 4].map(|size| Batch::new(&texts, size, &mut lengths)).to_vec();
        let task = EncodeTask::Embed { pooling: Pooling::Mean, normalise: true };
        let work = Encode { batches, task, steps: Vec::new(), width: Width::OfText(8), load: None };
        let written = work.written(&Request::default(), &texts).unwrap();
        let words: Vec<Vec<&str>> =
            written.iter().map(|batch| batch.iter().map(|text| text.text.as_str()).collect()).collect();
        assert_eq!(words, [vec!["middle"], vec!["long", "short", "middle", "long"]]);
        for (batch, words) in work.batches.iter().zip(&words) {
            let lengths = batch.texts.iter().map(Vec::len);
            let of_words =
                words.iter().map(|word| texts.iter().find(|text| text.name == **word).unwrap().tokens.len());
            assert!(lengths.eq(of_words));
        }
        let ids = [Prompt { text: None, ..text("ids", 5) }];
        let why = work.written(&Request::default(), &ids).unwrap_err().to_string();
        assert!(why.contains("ids is given as token ids"), "{why}");
    }
}
