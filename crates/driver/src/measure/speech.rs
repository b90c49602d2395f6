//! What a model hears: recordings as log-mel spectrograms, computed once for every framework, and the tokens that its
//! transcripts begin and end with.

use std::f64::consts::PI;
use std::path::PathBuf;

use bundle::{Audio, Bundle, ModelConfig};
use comparison::plan::prompts::{Spoken, Text, check_vocabulary, drawn};
use comparison::plan::{Draft, Failure, Given, InputAsked, Prompt, PromptSource, Request, Result};
use protocol::{Answer, Output, Task, untrusted};

use crate::measure::crew::Crew;
use crate::measure::places::Places;
use crate::measure::resolve::say_once;
use crate::measure::{arrays, media, progress};

/// Heard where no recording is named.
const USUAL: &str = "configs/inputs/speech.wav";

/// Most bytes of a recording.
const MOST: u64 = 1 << 30;

/// What a transcript begins with, in a model of many languages, and in one of English; a prompt may say otherwise.
const BEGIN: &str = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>";
const BEGIN_ENGLISH: &str = "<|startoftranscript|><|notimestamps|>";
/// Tokens of a model of many languages, at least (openai/whisper, `is_multilingual`).
const VOCABULARY_OF_LANGUAGES: usize = 51_865;
const END: &str = "<|endoftext|>";

/// Tokens in place of these where a model has no tokenizer.
const DRAWN: usize = 2;

/// A prompt for each recording of the request.
pub(crate) fn prompts(
    request: &Request,
    bundle: &Bundle,
    places: &Places,
    tokenizer: &Text,
) -> Result<Vec<Prompt>> {
    let config = bundle.config();
    let Some(audio) = config.audio else { return Ok(Vec::new()) };
    let (text, tokens) = beginning(&request.prompts, config, tokenizer)?;
    check_vocabulary(&tokens, config)?;
    let mut recordings: Vec<(String, PathBuf)> = Vec::new();
    for (name, asked) in &request.graph.inputs {
        let InputAsked::Sound { path, hop: None } = asked else {
            return Err(Failure::usage(format!(
                "--input {name}: {} hears recordings: --input {name}=FILE.wav",
                bundle.manifest().name
            )));
        };
        recordings.push((name.clone(), path.clone()));
    }
    if recordings.is_empty() {
        recordings.push(("speech".to_owned(), places.root().join(USUAL)));
    }
    let mut prompts = Vec::new();
    for (name, path) in recordings {
        let refused = |why: String| Failure::usage(format!("--input {name}={}: {why}", path.display()));
        let bytes = untrusted::file::read(&path, MOST).map_err(|error| refused(error.to_string()))?;
        let (samples, rate) = media::samples(&bytes).map_err(refused)?;
        if rate as usize != Audio::RATE {
            return Err(refused(format!(
                "it has {rate} samples a second, and the model hears {}: convert it, as by ffmpeg -i IN.wav -ar {} OUT.wav",
                Audio::RATE,
                Audio::RATE
            )));
        }
        if samples.is_empty() {
            return Err(refused("there is no sound in it".into()));
        }
        let heard = samples.len().min(audio.frames * Audio::HOP);
        if heard < samples.len() {
            let seconds = heard as f64 / Audio::RATE as f64;
            say_once(format!("{}: the first {seconds:.0} s are heard", path.display()));
        }
        let numbers = spectrogram(&samples[..heard], audio);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let file = arrays::kept(&bytes, &places.cache.join("inputs"))?;
        let seconds = heard as f64 / Audio::RATE as f64;
        prompts.push(Prompt {
            name,
            text: text.clone(),
            tokens: tokens.clone(),
            // None of them is replaced.
            special: [tokens.len(), 0],
            audio: Some(Spoken { file: file.display().to_string(), frames: audio.frames, seconds }),
            ..Prompt::default()
        });
    }
    Ok(prompts)
}

/// What every transcript begins with: text, if it has any, and tokens.
fn beginning(
    source: &PromptSource,
    config: &ModelConfig,
    tokenizer: &Text,
) -> Result<(Option<String>, Vec<u32>)> {
    let text = match source {
        PromptSource::Tokens(tokens) => return Ok((None, tokens.clone())),
        PromptSource::Usual => {
            let languages = config.vocab_size >= VOCABULARY_OF_LANGUAGES;
            if languages { BEGIN } else { BEGIN_ENGLISH }.to_owned()
        }
        PromptSource::Texts(texts) if texts.len() == 1 => texts[0].clone(),
        PromptSource::Texts(_) | PromptSource::Suite(_) | PromptSource::File(_) => {
            return Err(Failure::usage(format!(
                "a model that hears takes one prompt for all recordings, such as --prompt '{BEGIN}'"
            )));
        }
    };
    let tokens = match tokenizer {
        Text::Absent { .. } => drawn(&text, DRAWN, config.vocab_size),
        _ => tokenizer.encode(&text)?,
    };
    if tokens.is_empty() || tokens.len() >= config.max_positions {
        return Err(Failure::usage(format!(
            "a prompt of {} tokens leaves a model with {} positions nothing to say",
            tokens.len(),
            config.max_positions
        )));
    }
    Ok((Some(text), tokens))
}

/// The request's plan with as many new tokens as the longest transcript has, its end included: the first framework that
/// can transcribes every recording, greedily, up to half of the model's positions.
pub(crate) fn transcribed(
    draft: &Draft,
    given: &Given<'_>,
    (bundle, places, quiet): (&Bundle, &Places, bool),
    tokenizer: &Text,
) -> Result<Draft> {
    let prompt = given.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let most = new_tokens(bundle.config(), prompt, None);
    let plan = draft.with_new_tokens(most).plan(given.clone())?;
    let end = end(tokenizer)?;
    let crew = Crew::new(&plan, bundle, &places.on(&plan.device), quiet)?;
    let mut reasons = Vec::new();
    for (index, contender) in plan.contenders.iter().enumerate() {
        crew.progress.message(&format!("{} transcribes, to count the tokens", contender.label));
        let task = Task::Answer(Answer { work: plan.work.of_reference(), parity: None });
        let outputs = crew.answered(index, crew.reference_precision(), task);
        crew.progress.done();
        match outputs {
            Ok(outputs) if plan.work.are_whole(&outputs) => {
                let longest = outputs.iter().map(|output| spoken(output, end).len()).max().unwrap_or(0);
                return Ok(draft.with_new_tokens((longest + 1).min(most)));
            }
            Ok(_) => reasons.push(format!("{}: it did not transcribe", contender.label)),
            Err(_) if progress::requested() => return Err(Failure::Interrupted),
            Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
        }
    }
    Err(Failure::failed(format!("no framework transcribed: {}", reasons.join("; "))))
}

/// Tokens that a transcript may have behind a prompt: as many as asked for, or half of the model's positions, as in
/// openai/whisper.
pub(crate) fn new_tokens(config: &ModelConfig, prompt: usize, asked: Option<u32>) -> usize {
    let usual = (config.max_positions / 2).min(config.max_positions.saturating_sub(prompt));
    asked.map_or(usual, |asked| asked as usize)
}

/// The token that ends a transcript.
pub(crate) fn end(tokenizer: &Text) -> Result<Option<u32>> {
    if let Text::Absent { .. } = tokenizer {
        return Ok(None);
    }
    Ok(match tokenizer.encode(END)?.as_slice() {
        &[end] => Some(end),
        _ => None,
    })
}

/// The tokens of a transcript before its end.
pub(crate) fn spoken(output: &Output, end: Option<u32>) -> &[u32] {
    let tokens = output.tokens().first().map_or(&[][..], Vec::as_slice);
    let place = tokens.iter().position(|&token| Some(token) == end);
    &tokens[..place.unwrap_or(tokens.len())]
}

// The spectrogram of Whisper (Radford and others 2022; openai/whisper, audio.py; transformers,
// WhisperFeatureExtractor): power of a short-time Fourier transform with Hann windows, in mel bands, as a logarithm.

/// `[bands, frames]` of at most as many samples as the frames have; silence follows them.
fn spectrogram(samples: &[f32], audio: Audio) -> Vec<f32> {
    const BINS: usize = Audio::WINDOW / 2 + 1;
    let half = Audio::WINDOW / 2;
    let length = audio.frames * Audio::HOP;
    // The first samples are mirrored before the beginning, the last behind the end.
    let sample = |place: isize| {
        let last = length as isize - 1;
        let place = if place < 0 { -place } else { place.min(2 * last - place) };
        samples.get(place as usize).copied().map_or(0.0, f64::from)
    };
    let angle = |turn: usize| 2.0 * PI * turn as f64 / Audio::WINDOW as f64;
    // A row for each bin, so that products go through memory in order.
    let place = |bin: usize| (0..Audio::WINDOW).map(move |place| angle(bin * place % Audio::WINDOW));
    let sines: Vec<f64> = (0..BINS).flat_map(|bin| place(bin).map(f64::sin)).collect();
    let cosines: Vec<f64> = (0..BINS).flat_map(|bin| place(bin).map(f64::cos)).collect();
    let window: Vec<f64> = (0..Audio::WINDOW).map(|place| 0.5 - 0.5 * angle(place).cos()).collect();
    let filters = mel_filters(audio.bands, BINS);
    let mut logs = vec![0.0f64; audio.numbers()];
    for frame in 0..audio.frames {
        let first = (frame * Audio::HOP) as isize - half as isize;
        let windowed: Vec<f64> =
            (first..).zip(&window).map(|(place, window)| sample(place) * window).collect();
        let mut power = [0.0; BINS];
        if windowed.iter().any(|&one| one != 0.0) {
            let rows = sines.chunks_exact(Audio::WINDOW).zip(cosines.chunks_exact(Audio::WINDOW));
            for (power, (sines, cosines)) in power.iter_mut().zip(rows) {
                *power = dot(&windowed, sines).powi(2) + dot(&windowed, cosines).powi(2);
            }
        }
        for (band, filter) in filters.iter().enumerate() {
            let sum: f64 = filter.iter().zip(&power).map(|(share, power)| share * power).sum();
            logs[band * audio.frames + frame] = sum.max(1e-10).log10();
        }
    }
    // Nothing is more than eight powers of ten below the loudest.
    let loudest = logs.iter().copied().fold(f64::MIN, f64::max);
    logs.iter().map(|log| ((log.max(loudest - 8.0) + 4.0) / 4.0) as f32).collect()
}

/// In four sums, which a CPU computes at once.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0) {
        (0..4).for_each(|lane| sums[lane] += a[lane] * b[lane]);
    }
    sums.iter().sum()
}

/// Triangles over the bins of a Fourier transform, of equal area, evenly spaced on Slaney's mel scale (Auditory Toolbox,
/// 1998; librosa.filters.mel): linear up to 1 kHz, logarithmic above.
fn mel_filters(bands: usize, bins: usize) -> Vec<Vec<f64>> {
    const LINEAR: f64 = 200.0 / 3.0;
    const BEND: f64 = 1000.0;
    let step = 6.4_f64.ln() / 27.0;
    let highest = Audio::RATE as f64 / 2.0;
    let mel = BEND / LINEAR + (highest / BEND).ln() / step;
    let hertz = |mel: f64| match mel < BEND / LINEAR {
        true => mel * LINEAR,
        false => BEND * (step * (mel - BEND / LINEAR)).exp(),
    };
    let edges: Vec<f64> = (0..bands + 2).map(|edge| hertz(mel * edge as f64 / (bands + 1) as f64)).collect();
    let filter = |edges: &[f64]| {
        let share = |bin: usize| {
            let at = highest * bin as f64 / (bins - 1) as f64;
            let (up, down) =
                ((at - edges[0]) / (edges[1] - edges[0]), (edges[2] - at) / (edges[2] - edges[1]));
            up.min(down).max(0.0) * 2.0 / (edges[2] - edges[0])
        };
        (0..bins).map(share).collect()
    };
    edges.windows(3).map(filter).collect()
}

#[cfg(test)]
mod tests {
    use bundle::{Activation, Mlp};

    use super::*;

    fn audio(bands: usize, frames: usize) -> Audio {
        let mlp = Mlp { width: 1, activation: Activation::GeluErf, gated: false, bias: true };
        Audio { bands, frames, layers: 1, heads: 1, mlp }
    }

    /// By transformers 5.23: `WhisperFeatureExtractor(feature_size=12, chunk_length=1)`.
    #[test]
    fn a_spectrogram_is_that_of_transformers() {
        let samples: Vec<f32> =
            (0..8000).map(|place| ((f64::from(place * place) * 0.00005).sin() * 0.5) as f32).collect();
        let found = spectrogram(&samples, audio(12, 100));
        for (band, frame, expected) in [
            (0, 0, 0.834_400_5),
            (1, 7, 1.142_696_7),
            (2, 50, 0.301_373_84),
            (3, 12, -0.252_040_27),
            (5, 25, -0.119_024_87),
            (7, 49, 1.015_943),
            (11, 51, -0.182_561_64),
            (11, 99, -0.709_015_7),
        ] {
            let ours: f32 = found[band * 100 + frame];
            assert!((ours - expected).abs() < 5e-5, "band {band}, frame {frame}: {ours}, not {expected}");
        }
    }

    #[test]
    fn a_transcript_ends_before_its_end_and_silence_is_even() {
        let output = Output::Tokens(vec![vec![4, 5, 9, 7]]);
        assert_eq!(spoken(&output, Some(9)), [4, 5]);
        assert_eq!(spoken(&output, None), [4, 5, 9, 7]);
        let silence = spectrogram(&[], audio(3, 4));
        assert!(silence.iter().all(|one| *one == -1.5), "{silence:?}");
    }
}
