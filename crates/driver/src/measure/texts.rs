//! Quality of engines and precisions, by the bundled text and the bundled queries.

use std::collections::BTreeSet;
use std::path::Path;

use bundle::{Bundle, Pooled, Precision, Step};
use comparison::facts::agreement::{QualityScore, TextScore};
use comparison::facts::evidence::Fact;
use comparison::judge::parity::{Logits, TextSums, retrieval};
use comparison::plan::chat::Written;
use comparison::plan::prompts::{self, Text, Whole};
use comparison::plan::work::encode::{self, Made, Width, check, made};
use comparison::plan::{
    Contender, Failure, Prompt, Prose, QualityData, Request, Result, Retrieval, TaskAsked, VectorsAsked,
};
use configs::{Suite, SuitePrompt};
use protocol::{Answer, EncodeTask, Output, Score, Task, TextBatch, untrusted};
use tempfile::TempPath;

use crate::measure::crew::Crew;
use crate::measure::places::Places;
use crate::measure::process::now;
use crate::measure::reference::answers;
use crate::measure::session::Session;
use crate::measure::{logits, progress, tokenizer};

const BATCH: usize = 16;

/// Judges a contender, by its place in the plan.
type Judge<'a> = Box<dyn Fn(usize) -> std::result::Result<QualityScore, String> + 'a>;

/// The data for judging quality, if a study asks for it, or if texts are encoded at a reduced precision.
/// The inner `Err` says why there is none.
pub(crate) fn bundled(
    request: &Request,
    places: &Places,
    bundle: &Bundle,
    tokenizer: &Text,
) -> Result<Option<std::result::Result<QualityData, String>>> {
    let encodes = bundle.config().encodes();
    let is_reduced = |precision: &Precision| *precision != Precision::F32;
    let of_arms = request.study.arms.iter().filter_map(|arm| arm.precision.as_ref());
    let reduced = request.precisions.iter().chain(of_arms).any(is_reduced);
    if !(request.study.text || encodes && reduced) {
        return Ok(None);
    }
    if !encodes {
        return Ok(Some(text_bundled(places, bundle).map(QualityData::Text)));
    }
    let pooled = bundle.pooled().map_err(|error| Failure::failed(error.to_string()))?;
    // A task that the model does not have is rejected with the request.
    let asked = (request.encode.task, &request.encode.vectors);
    let Ok(Made { task, width, .. }) = made(bundle.config(), pooled.as_ref(), asked) else { return Ok(None) };
    let pooled = pooled.unwrap_or_default();
    if pooled.skips_prompt && !pooled.prompts.is_empty() {
        let why = "its pooling leaves out prompts, and queries and documents have prompts of several lengths";
        return Ok(Some(Err(why.to_owned())));
    }
    retrieval_of(places, bundle, tokenizer, (task, width), &pooled)
        .map(|data| Some(data.map(QualityData::Retrieval)))
}

/// How a model's texts become vectors or scores, and its pooling, which leaves out the tokens of a prompt if it is to.
pub(crate) fn encoded(
    bundle: &Bundle,
    tokenizer: Option<&Text>,
    asked: (Option<TaskAsked>, &VectorsAsked),
) -> Result<(Made, Option<Pooled>)> {
    let (config, name) = (bundle.config(), &bundle.manifest().name);
    let mut pooled = bundle.pooled().map_err(|error| Failure::failed(error.to_string()))?;
    let made = |pooled: Option<&Pooled>| {
        encode::made(config, pooled, asked).map_err(|why| Failure::usage(format!("{name} {why}")))
    };
    let first = made(pooled.as_ref())?;
    let (Some(own), Some(prompt), Some(tokenizer)) = (&mut pooled, &first.prompt, tokenizer) else {
        return Ok((first, pooled));
    };
    if !own.skips_prompt {
        return Ok((first, pooled));
    }
    let Whole { tokens, .. } = tokenizer.encode_whole(prompt, None)?;
    let ends = tokens.last() != tokenizer.encode(prompt)?.last();
    if let Some(Step::Pool { skipped, .. }) = own.steps.first_mut() {
        *skipped = tokens.len() - usize::from(ends);
    }
    Ok((made(pooled.as_ref())?, pooled))
}

/// The bundled queries and documents in the form of the task. The inner `Err` says why the model cannot
/// process them.
fn retrieval_of(
    places: &Places,
    bundle: &Bundle,
    tokenizer: &Text,
    (task, width): (EncodeTask, Width),
    pooled: &Pooled,
) -> Result<std::result::Result<Retrieval, String>> {
    let file = |name: &str| read_file(&places.configs.base().join(name));
    let (pairs, plain) = (file(encode::PAIRS)?.prompts, file(encode::TEXTS)?.prompts);
    let queries = distinct(pairs.iter().filter_map(|pair| pair.text.clone()));
    let found = pairs.iter().filter_map(|pair| pair.pair.clone());
    let documents = distinct(found.chain(plain.iter().filter_map(|text| text.text.clone())));
    let alone = |text: &String| SuitePrompt { text: Some(text.clone()), ..SuitePrompt::default() };
    let (asked, queries, pairs): (Vec<SuitePrompt>, usize, bool) = match (task, width) {
        (EncodeTask::Embed { .. }, _) => {
            // As `encode_query` and `encode_document` of sentence-transformers.
            let behind = |name: &str, texts: &[String]| -> Vec<SuitePrompt> {
                let prompt = pooled.prompts.get(name).map_or("", String::as_str);
                texts.iter().map(|text| alone(&format!("{prompt}{text}"))).collect()
            };
            ([behind("query", &queries), behind("document", &documents)].concat(), queries.len(), false)
        }
        (EncodeTask::Score, Width::OfText(1)) => {
            let with =
                |query: &String, text: &String| SuitePrompt { pair: Some(text.clone()), ..alone(query) };
            let all = queries.iter().flat_map(|query| documents.iter().map(move |text| with(query, text)));
            (all.collect(), queries.len(), true)
        }
        (EncodeTask::Score, _) => (documents.iter().map(alone).collect(), 0, false),
    };
    let resolved = prompts::resolve(&asked, None, bundle.config(), tokenizer, None)?;
    if let Some(why) = resolved.iter().find_map(|text| check(&text.tokens, &text.name, bundle.config()).err())
    {
        return Ok(Err(why.to_string()));
    }
    let (texts, mut types): (Vec<_>, Vec<_>) =
        resolved.into_iter().map(|Prompt { tokens, types, .. }| (tokens, types)).unzip();
    let kinds = bundle.config().token_types();
    if kinds < 2 || types.iter().any(Vec::is_empty) {
        types.clear();
    }
    Ok(Ok(Retrieval { texts, types, queries, pairs }))
}

/// The texts in their order, without repetitions.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    texts.filter(|text| seen.insert(text.clone())).collect()
}

/// Number of timed repetitions of tokenising in a round, after an untimed one.
const TOKENISED: usize = 5;

impl Session<'_> {
    /// Times the tokenizer, if the plan asks for it. No other process of a round is alive.
    pub(crate) fn tokenise(&mut self) {
        let Some(cases) = &self.crew.plan.tokenised else { return };
        let (bundle, plan) = (self.crew.bundle, self.crew.plan);
        let tokenizer = self
            .tokenizer
            .get_or_insert_with(|| tokenizer::on_threads(bundle, plan.threads, plan.cpus.clone()));
        let timed = |texts: &Vec<Written>| {
            let mut ns = Vec::with_capacity(TOKENISED);
            for repeat in 0..=TOKENISED {
                // One question each: an answer has a time limit.
                let took = tokenizer
                    .time(texts, now)?
                    .ok_or_else(|| Failure::failed("the model's tokenizer is gone"))?;
                ns.extend((repeat > 0).then_some(took));
            }
            ns.sort_unstable();
            Ok(ns[ns.len() / 2])
        };
        let ns = cases.iter().map(timed).collect::<Result<Vec<u64>>>().map_err(|failure| failure.to_string());
        self.recorder.record(Fact::Tokenised { ns });
    }

    /// Judges the quality of every contender that ran, if the plan has data for it.
    pub(crate) fn judge_quality(&mut self) {
        let Some(data) = &self.crew.plan.quality else { return };
        let plan = self.crew.plan;
        let contenders = plan.contenders.iter().enumerate();
        let ran: Vec<(usize, &Contender)> =
            contenders.filter(|(_, contender)| !self.recorder.is_absent(contender)).collect();
        if ran.is_empty() {
            return;
        }
        self.crew.progress.message("quality: the reference in f32");
        let crew = &self.crew;
        let judge: Judge<'_> = match data {
            Err(reason) => Box::new(|_| Err(reason.clone())),
            Ok(QualityData::Text(prose)) => {
                // A text has a perplexity even without a reference.
                let reference = crew.text_reference(prose).ok();
                Box::new(move |index| {
                    crew.score_text(index, prose, reference.as_ref()).map(QualityScore::Text)
                })
            }
            Ok(QualityData::Retrieval(asked)) => {
                let theirs = crew.first_in_f32(|index, contender| crew.vectors(index, contender, asked));
                Box::new(move |index| {
                    let (_, theirs) = theirs.as_ref().map_err(Clone::clone)?;
                    let ours = crew.vectors(index, &crew.plan.contenders[index], asked)?;
                    retrieval::score(asked, &ours, theirs).map(QualityScore::Retrieval)
                })
            }
        };
        for (index, contender) in ran {
            crew.progress.message(&format!("quality: {}", contender.label));
            let score = judge(index);
            if progress::requested() {
                return;
            }
            self.recorder.record(Fact::Text { framework: contender.label.clone(), score });
        }
    }
}

impl Crew<'_> {
    /// The f32 output of the first contender that can compute it, with its name. `Err` says why none can.
    pub(crate) fn first_in_f32<T>(
        &self,
        compute: impl Fn(usize, &Contender) -> std::result::Result<T, String>,
    ) -> std::result::Result<(String, T), String> {
        let mut reasons = Vec::new();
        for (index, contender) in self.plan.contenders.iter().enumerate() {
            match compute(index, &Contender { precision: Precision::F32, ..contender.clone() }) {
                Ok(found) => return Ok((contender.label.clone(), found)),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
        }
        Err(reasons.join("; "))
    }

    /// Runs one process for the vectors of all texts, or their scores.
    fn vectors(
        &self,
        index: usize,
        contender: &Contender,
        asked: &Retrieval,
    ) -> std::result::Result<Vec<Vec<f32>>, String> {
        let work = self.plan.work.encode().ok_or("it encodes no texts")?;
        let types = asked.types.chunks(BATCH).map(<[_]>::to_vec).chain(std::iter::repeat_with(Vec::new));
        let texts = asked.texts.chunks(BATCH).map(<[_]>::to_vec);
        let cases = texts.zip(types).map(|(texts, types)| TextBatch { texts, types }).collect();
        let task = Task::Answer(Answer { work: work.of(cases), parity: None });
        let events = self.done(index, &self.job(contender, task)).map_err(|failure| failure.sentence())?;
        let vectors: Vec<Vec<f32>> =
            answers(events).unwrap_or_default().into_iter().flat_map(Output::into_vectors).collect();
        if !work.are_whole(&vectors, &asked.texts) {
            return Err(
                "it did not give each bundled text finite numbers of the size that the model has".into()
            );
        }
        Ok(vectors)
    }
}

// Predictions of the bundled text by a model that continues texts: perplexity at a contender's own
// precision, and the effect of that precision.

/// Number of positions that the engine computes at a time, so that its own buffers stay small.
const PIECE: usize = 128;

/// Most bytes of one window's logits: they pass through the memory of the worker and of this program.
const WINDOW_BYTES: usize = 128 << 20;

/// A reference's logits of a text, in f32. Its files are removed when it is dropped.
pub struct TextReference {
    pub framework: String,
    windows: Vec<TempPath>,
}

/// The bundled text. `Err` if the model has no tokenizer.
pub fn text_bundled(places: &Places, bundle: &Bundle) -> std::result::Result<Prose, String> {
    let path = places.configs.base().join("texts/prose.txt");
    let prose = untrusted::file::read_text(&path, untrusted::file::INPUT)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let prose = prose.split_whitespace().collect::<Vec<_>>().join(" ");
    let read = |text: Text| Ok(Prose { tokens: text.encode(&prose)?, before: text.ends()?.0 });
    tokenizer::text(bundle).and_then(read).map_err(|failure| failure.to_string())
}

impl Crew<'_> {
    /// The logits of the text in f32, from the first contender that can compute them. `Err` says why none can.
    pub(crate) fn text_reference(&self, prose: &Prose) -> std::result::Result<TextReference, String> {
        let (framework, windows) = self.first_in_f32(|index, contender| {
            self.windows(prose).iter().map(|window| self.score_window(index, contender, window)).collect()
        })?;
        Ok(TextReference { framework, windows })
    }

    /// Scores the text on contender `index` at its own precision, against `reference` if there is one. A long
    /// text is cut into independent windows. A window is the model's context, or shorter if the vocabulary is
    /// large.
    pub(crate) fn score_text(
        &self,
        index: usize,
        prose: &Prose,
        reference: Option<&TextReference>,
    ) -> std::result::Result<TextScore, String> {
        let mut sums = TextSums::default();
        for (number, window) in self.windows(prose).iter().enumerate() {
            let file = self.score_window(index, &self.plan.contenders[index], window)?;
            let theirs = reference.and_then(|reference| reference.windows.get(number));
            let shape = [1, window.len(), self.vocabulary()];
            let theirs: Option<Logits> = theirs.map(|file| logits::read_score(file, shape)).transpose()?;
            sums.add(window, &logits::read_score(&file, shape)?, theirs.as_ref())?;
        }
        sums.score()
    }

    /// Each begins with the special tokens that the model was trained to see first, as in llama.cpp's perplexity.
    fn windows(&self, prose: &Prose) -> Vec<Vec<u32>> {
        let (config, Prose { tokens, before }) = (self.bundle.config(), prose);
        let fit = WINDOW_BYTES / (size_of::<f32>() * config.vocab_size);
        let fit = fit.min(config.max_positions).saturating_sub(before.len()).max(2);
        tokens.chunks(fit).map(|chunk| [before.as_slice(), chunk].concat()).collect()
    }

    /// Runs one process for the logits of a window. Its file is removed when dropped.
    fn score_window(
        &self,
        index: usize,
        contender: &Contender,
        window: &[u32],
    ) -> std::result::Result<TempPath, String> {
        let file = scratch_file(self.scratch.path())?;
        let task = Task::Score(Score {
            sequences: vec![window.to_vec()],
            types: Vec::new(),
            audio: Vec::new(),
            piece: PIECE,
            kept: None,
            file: file.display().to_string(),
        });
        let done = self.done(index, &self.job(contender, task));
        done.map(|_| file).map_err(|failure| failure.sentence())
    }
}

/// A file for a worker to write to; it is removed when dropped.
pub fn scratch_file(directory: &Path) -> std::result::Result<TempPath, String> {
    let file = tempfile::Builder::new().suffix(".safetensors").tempfile_in(directory);
    file.map(tempfile::NamedTempFile::into_temp_path)
        .map_err(|e| format!("cannot make a file in {}: {e}", directory.display()))
}

// Files of prompts, and of texts.

/// The prompts of a file: TOML as in `configs/suites`, a prompt a line, or a JSON value a line.
pub(crate) fn read_file(path: &Path) -> Result<Suite> {
    let text = untrusted::file::read_text(path, untrusted::file::INPUT)
        .map_err(|e| Failure::usage(format!("cannot read prompts from {}: {e}", path.display())))?;
    prompts_in(path, &text)
}

/// The prompts in the text of the file `path`.
pub fn prompts_in(path: &Path, text: &str) -> Result<Suite> {
    let ends_in = |end: &str| path.extension().is_some_and(|extension| extension == end);
    let suite = if ends_in("toml") {
        configs::parse(path, text)?
    } else if ends_in("jsonl") {
        prompts::from_json_lines(text).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?
    } else {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        prompts::from_texts(&lines.map(str::to_owned).collect::<Vec<_>>())
    };
    if suite.prompts.is_empty() {
        return Err(Failure::usage(format!("{} holds no prompts", path.display())));
    }
    Ok(suite)
}

/// The bundled default texts to encode.
pub(crate) fn usual(request: &Request, bundle: &Bundle, places: &Places) -> Result<Suite> {
    read_file(&places.configs.base().join(encode::usual_texts(request.encode.task, bundle.config())))
}
