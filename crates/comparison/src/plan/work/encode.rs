//! Texts to vectors, or to scores.

use bundle::{Head, ModelConfig, Pooled, Scored};
use protocol::{EncodeTask, EncodeWork, Input, KvCache, Load, Output, Sample, Step, TextBatch};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Describe, Proof, WorkKind};
use crate::plan::chat::Written;
use crate::plan::options::Lengths;
use crate::plan::options::UsualRequests;
use crate::plan::work;
use crate::plan::{EncodeAsked, Failure, LengthsAsked, Prompt, Request, Result, TaskAsked, VectorsAsked};

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

/// Number of numbers for each text, or for each of its tokens.
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
    /// The type of each token; all 0 if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Vec<u32>>,
}

/// The task of an encoder: batches of these texts, pooled as the model's files say.
pub(super) fn resolve(
    request: &Request,
    config: &ModelConfig,
    (texts, pooled): (Vec<Prompt>, Option<Pooled>),
    seed: u64,
) -> Result<Encode> {
    let model = request.model();
    let refuse = |what: String| Err(Failure::usage(format!("{model} encodes texts: {what}")));
    let arms = &request.study.arms;
    let of_decoders = [
        ("--context", request.context.iter().any(|&tokens| tokens > 0)),
        ("--kv-cache", request.kv_cache == KvCache::Off || arms.iter().any(|arm| arm.kv_cache.is_some())),
        ("--new-tokens", !request.new_tokens.is_empty()),
        ("--prefill-chunk", !request.prefill_chunk.is_empty()),
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
    let most = truncate.then(|| longest_taken(config, pooled.as_ref()));
    let fitting = |text: Prompt| {
        let Prompt { tokens, types, .. } = text;
        let (tokens, types) = cut((tokens, types), most);
        known_types(Prompt { tokens, types, ..text }, config)
    };
    let texts: Vec<Prompt> = texts.into_iter().map(fitting).collect();
    for text in &texts {
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

/// How a model's texts become vectors or scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub task: EncodeTask,
    pub steps: Vec<Step>,
    pub width: Width,
    /// What is put in front of each text.
    pub prompt: Option<String>,
    /// What users may not expect. Each sentence follows the model's name.
    pub notes: Vec<String>,
}

/// How texts are encoded: for the task asked for, or else the one that the model's files are for: scores if it has a head,
/// else vectors.
///
/// # Errors
/// Why that is impossible; the text follows the model's name.
pub fn made(
    config: &ModelConfig,
    pooled: Option<&Pooled>,
    (task, asked): (Option<TaskAsked>, &VectorsAsked),
) -> std::result::Result<Made, String> {
    let head = config.scoring();
    let scores = |head: &Head| {
        if !asked.is_default() {
            return Err("gives scores: --pooling, --normalise and --prompt-name are for vectors".to_owned());
        }
        let width = match head.of {
            Scored::Texts(_) => Width::OfText(head.labels),
            Scored::Tokens => Width::OfToken(head.labels),
        };
        Ok(Made { task: EncodeTask::Score, steps: Vec::new(), width, prompt: None, notes: Vec::new() })
    };
    match (task, head) {
        (None | Some(TaskAsked::Classify), Some(head)) => return scores(head),
        (Some(TaskAsked::Rerank), Some(head)) => {
            let is_of_texts = matches!(head.of, Scored::Texts(_));
            return if is_of_texts {
                scores(head)
            } else {
                Err("scores tokens: its task is classify".into())
            };
        }
        (Some(task @ (TaskAsked::Rerank | TaskAsked::Classify)), None) => {
            return Err(format!("has no head that gives scores, which {} needs", task.name()));
        }
        (None | Some(TaskAsked::Embed), _) => {}
    }
    let mut notes = Vec::new();
    if pooled.is_none() && asked.pooling.is_none() {
        notes.push(
            "does not say in its files how the vectors of tokens are pooled: it is their mean, as in sentence-transformers; \
             --pooling names another way"
                .to_owned(),
        );
    }
    let own = pooled.cloned().unwrap_or_default();
    let prompt = prompt(&own, asked.prompt_name.as_deref(), &mut notes)?;
    let mut whole = own.whole();
    if let (Some(pooling), Some(Step::Pool { ways, .. })) = (asked.pooling, whole.first_mut()) {
        *ways = vec![pooling.way()];
    }
    let end = whole.iter().rposition(|step| !matches!(step, Step::Cut(_))).unwrap_or(0);
    match (asked.normalise, whole.get(end) == Some(&Step::Normalise)) {
        (Some(true), false) => whole.insert(whole.len().min(end + 1), Step::Normalise),
        (Some(false), true) => drop(whole.remove(end)),
        _ => {}
    }
    let mut width = config.hidden_size;
    for step in &whole {
        if let Step::Dense(dense) = step
            && dense.inputs != width
        {
            return Err(format!(
                "has a dense module for vectors of {} numbers, and that pooling gives {width}: leave --pooling out",
                dense.inputs
            ));
        }
        width = step.width(width);
    }
    let Pooled { pooling, normalise, steps, .. } = own.with(whole);
    Ok(Made {
        task: EncodeTask::Embed { pooling, normalise },
        steps,
        width: Width::OfText(width),
        prompt,
        notes,
    })
}

/// The text of the prompt in front of each text: that of a name, or of the files' default.
fn prompt(
    pooled: &Pooled,
    name: Option<&str>,
    notes: &mut Vec<String>,
) -> std::result::Result<Option<String>, String> {
    let own = pooled.default_prompt.as_deref();
    match name.or(own) {
        None | Some("none") => Ok(None),
        Some(chosen) => {
            let Some(text) = pooled.prompts.get(chosen) else {
                let names: Vec<&str> = pooled.prompts.keys().map(String::as_str).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                return Err(format!("has no prompt {chosen:?} in its files; there are {there}"));
            };
            if name.is_none() && !text.is_empty() {
                notes.push(format!(
                    "asks for its prompt {chosen:?} in front of each text, which is {text:?}; --prompt-name none leaves it out"
                ));
            }
            Ok((!text.is_empty()).then(|| text.clone()))
        }
    }
}

impl Width {
    /// Number of numbers for a text of so many tokens.
    pub fn numbers(self, tokens: usize) -> usize {
        match self {
            Width::OfText(width) => width,
            Width::OfToken(width) => width * tokens,
        }
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

/// A text without token types if the model does not distinguish them.
fn known_types(text: Prompt, config: &ModelConfig) -> Prompt {
    let types = config.encoder.as_ref().map_or(0, |encoder| encoder.token_types);
    if types > 1 { text } else { Prompt { types: Vec::new(), ..text } }
}

/// The longest text in tokens that a model accepts: the limit in its files, or its number of positions.
pub fn longest_taken(config: &ModelConfig, pooled: Option<&Pooled>) -> usize {
    let said = pooled.and_then(|pooled| pooled.max_tokens);
    said.unwrap_or(config.max_positions).min(config.max_positions)
}

/// A text's ids and types, cut to `most` tokens. The last, which marks the end of the text, stays the last.
pub fn cut((mut tokens, mut types): (Vec<u32>, Vec<u32>), most: Option<usize>) -> (Vec<u32>, Vec<u32>) {
    let Some(most) = most.filter(|&most| tokens.len() > most) else { return (tokens, types) };
    for row in [&mut tokens, &mut types] {
        if let Some(last) = row.pop() {
            row.truncate(most.saturating_sub(1));
            row.push(last);
        }
    }
    (tokens, types)
}

/// Rejects a text that the model cannot encode.
pub fn check(tokens: &[u32], name: &str, config: &ModelConfig) -> Result<()> {
    if tokens.is_empty() {
        return Err(Failure::usage(format!("{name} is empty: there is nothing to encode")));
    }
    let (length, positions) = (tokens.len(), config.max_positions);
    if length > positions {
        return Err(Failure::usage(format!(
            "{name} has {length} tokens, more than the model's {positions} positions; --truncate cuts it"
        )));
    }
    Ok(())
}

/// So many of the texts, in turn. A single one is that of median length.
fn chosen(texts: &[Prompt], size: usize) -> Vec<&Prompt> {
    if size != 1 {
        return texts.iter().cycle().take(size).collect();
    }
    let mut sorted: Vec<&Prompt> = texts.iter().collect();
    sorted.sort_by_key(|text| text.tokens.len());
    sorted.get(sorted.len() / 2).into_iter().copied().collect()
}

impl Batch {
    fn new(texts: &[Prompt], size: usize, lengths: &mut Lengths) -> Batch {
        let chosen = chosen(texts, size);
        let name = if size == 1 { "1 text".to_owned() } else { format!("{size} texts") };
        let (mut tokens, mut types) = (Vec::new(), Vec::new());
        for text in chosen {
            let places = lengths.places(text.tokens.len());
            tokens.push(places.iter().map(|&place| text.tokens[place]).collect());
            let kind = |&place: &usize| text.types.get(place).copied().unwrap_or(0);
            types.push(places.iter().map(kind).collect::<Vec<u32>>());
        }
        if types.iter().flatten().all(|&kind| kind == 0) {
            types.clear();
        }
        Batch { name, texts: tokens, types }
    }

    fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }
}

impl Encode {
    /// The texts of each batch in writing; `texts` are the ones that its ids were made from.
    pub(crate) fn written(&self, request: &Request, texts: &[Prompt]) -> Result<Vec<Vec<Written>>> {
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
        let wide = (3 * config.hidden_size).max(config.intermediate_size) as u64;
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
        let case = |batch: &Batch| TextBatch { texts: batch.texts.clone(), types: batch.types.clone() };
        let cases = self.batches.iter().map(case).collect();
        protocol::Work::Encode(EncodeWork { cases, task: self.task, steps: self.steps.clone() })
    }

    fn is_whole(&self, case: usize, output: &Output) -> bool {
        let Output::Vectors(output) = output else { return false };
        let texts = self.batches.get(case).map_or(&[][..], |batch| &batch.texts);
        let is_vector = |(vector, text): (&Vec<f32>, &Vec<u32>)| {
            vector.len() == self.width.numbers(text.len()) && vector.iter().all(|number| number.is_finite())
        };
        output.vectors.len() == texts.len() && output.vectors.iter().zip(texts).all(is_vector)
    }

    fn has_all_sequences(&self, sample: &Sample) -> bool {
        // Every vector is compared with the reference's when it arrives, and is not kept.
        matches!(sample.output, Output::Vectors(_))
    }

    fn is_done(&self, sample: &Sample) -> bool {
        let has_calls = work::has_all(self.load, sample);
        sample.marks_ns.len() == 1 && has_calls && matches!(sample.output, Output::Vectors(_))
    }

    fn load(&self) -> Option<Load> {
        self.load
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
            Some(Batch { texts: texts.clone(), ..self.batches.get(*case)?.clone() })
        };
        let batches = asked.iter().map(batch).collect::<Option<Vec<_>>>()?;
        Some(Encode { batches, load: None, ..self.clone() }.of_reference())
    }
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
    fn a_text_is_cut_before_the_token_that_ends_it() {
        let text = || (vec![1, 5, 6, 7, 2], vec![0, 0, 0, 1, 1]);
        assert_eq!(cut(text(), Some(3)), (vec![1, 5, 2], vec![0, 0, 1]));
        assert_eq!(cut(text(), Some(5)), text());
        assert_eq!(cut(text(), None), text());
        assert_eq!(cut((vec![1, 5, 2], Vec::new()), Some(1)), (vec![2], Vec::new()));
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
