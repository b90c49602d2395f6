use protocol::{Algorithm, Sample};

use super::*;
use crate::engine;
use crate::engine::Decode;

/// An engine with logits that depend on the position alone.
struct Scripted {
    vocabulary: usize,
    logits: Vec<f32>,
}

const MASK: u32 = 9;

impl InferenceEngine for Scripted {
    const FRAMEWORK: &'static str = "scripted";

    fn runtime() -> Result<engine::Runtime, engine::EngineError> {
        unreachable!("not asked for")
    }

    fn load(_: &engine::Bundle, _: &engine::Settings) -> Result<Self, engine::EngineError> {
        unreachable!("not asked for")
    }

    fn in_effect(&self) -> engine::InEffect {
        unreachable!("not asked for")
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, engine::EngineError> {
        Ok(self)
    }
}

impl Decode for Scripted {
    fn begin(&mut self, _: usize, _: usize) -> Result<(), engine::EngineError> {
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], _: Want) -> Result<&[f32], engine::EngineError> {
        let vocabulary = self.vocabulary;
        self.logits.clear();
        for position in 0..tokens.len() {
            // Confidence rises with the position: the row at p is of position p + 1.
            let row = (0..vocabulary).map(|id| if id == position % 8 { 1.0 + position as f32 } else { 0.0 });
            self.logits.extend(row);
        }
        Ok(&self.logits)
    }
}

fn task(steps: usize, algorithm: Algorithm) -> Denoise {
    Denoise {
        steps,
        algorithm,
        temperature: 0.0,
        top_p: None,
        top_k: None,
        alg_temp: 0.0,
        eps: 1e-3,
        seed: 7,
    }
}

fn case() -> MaskedCase {
    MaskedCase { prompts: vec![vec![1, 2]], ..MaskedCase::default() }
}

fn work(task: &Denoise, case: &MaskedCase, new_tokens: usize, forced: bool) -> DenoiseWork {
    DenoiseWork { cases: vec![case.clone()], new_tokens, forced, how: *task }
}

const MODEL: Model<'_> = Model { directory: None, vocabulary: 10, mask_token: Some(MASK), bands: 0 };

fn engine() -> Scripted {
    Scripted { vocabulary: 10, logits: Vec::new() }
}

fn sample(task: &Denoise, case: &MaskedCase, new_tokens: usize, forced: bool) -> Sample {
    let work = work(task, case, new_tokens, forced);
    let mut denoising = Denoising::new(&work, (MODEL, Pace::new(0.0).unwrap()), forced).unwrap();
    denoising.request(&mut engine(), 0, (None, task.steps)).unwrap().1
}

fn run(task: &Denoise, case: &MaskedCase, new_tokens: usize, forced: bool) -> Steps {
    match sample(task, case, new_tokens, forced).output {
        Output::Steps(steps) => steps,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_surest_positions_are_unmasked_first_by_logits_of_the_position_before() {
    let whole = sample(&task(4, Algorithm::MaskgitPlus), &case(), 4, false);
    let Output::Steps(steps) = &whole.output else { panic!("{whole:?}") };
    assert_eq!(steps.tokens, [[1, 2, 3, 4]], "position p has the token that the row at p - 1 prefers");
    // The times are 1, 0.75025, 0.5005, 0.25075, 0.001. The shares of steps are 0.24975, 0.333, 0.499 and all: of 4 masks
    // no whole one, of 4 one, of 3 one, and both of 2.
    assert_eq!(steps.unmasked, [[3, 3, 2, 1]]);
    assert_eq!((whole.marks_ns.len(), steps.passes_ns.len()), (4, 4));
    let within = steps.passes_ns.iter().zip(&whole.marks_ns.0);
    assert!(within.clone().all(|(pass, mark)| pass <= mark), "{whole:?}");
}

#[test]
fn a_request_in_slices_is_the_request_and_the_next_draws_the_same() {
    let task = Denoise { temperature: 5.0, ..task(4, Algorithm::Entropy) };
    let work = work(&task, &case(), 12, false);
    let mut denoising = Denoising::new(&work, (MODEL, Pace::new(0.0).unwrap()), false).unwrap();
    for _ in 0..2 {
        let mut request = denoising.begin(&mut engine(), 0, None).unwrap();
        for marks in 1..4 {
            assert_eq!(request.marks(), marks);
            denoising.advance(&mut engine(), &mut request, (1, None)).unwrap();
        }
        let sliced = Workload::<Scripted>::sample(&denoising, request);
        let (Output::Steps(steps), whole) = (&sliced.output, run(&task, &case(), 12, false)) else {
            panic!()
        };
        assert_eq!((&steps.tokens, &steps.unmasked), (&whole.tokens, &whole.unmasked));
        assert_eq!((sliced.marks_ns.len(), steps.passes_ns.len()), (4, 4));
    }
}

#[test]
fn a_forced_step_is_fed_the_trace_and_says_where_it_would_have_gone_another_way() {
    let forced = MaskedCase { trace: vec![vec![5, 5, 5, 5]], unmasked: vec![vec![0, 1, 2, 3]], ..case() };
    let sample = run(&task(4, Algorithm::MaskgitPlus), &forced, 4, true);
    assert_eq!(sample.tokens, [[1, 2, 3, 4]], "the worker's own choices, in the states of the trace");
    assert_eq!(sample.unmasked, [[4, 4, 4, 3]], "4 steps: not in the step in which the trace unmasks it");
}

#[test]
fn every_mask_is_filled_in_by_the_last_step() {
    for algorithm in Algorithm::ALL {
        for (steps, new_tokens) in [(1, 5), (3, 7), (8, 8)] {
            let sample = run(&task(steps, algorithm), &case(), new_tokens, false);
            assert!(sample.unmasked[0].iter().all(|&step| (step as usize) < steps), "{algorithm:?}");
            assert!(!sample.tokens[0].contains(&MASK), "{algorithm:?}");
        }
    }
}

#[test]
fn a_seed_draws_the_same_and_another_seed_other_tokens() {
    let drawn = |seed| {
        let task = Denoise { temperature: 5.0, seed, ..task(4, Algorithm::Entropy) };
        run(&task, &case(), 12, false).tokens
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

/// The first of 4 steps of `origin` unmasks each of 12 masks with probability 0.24975: over 1000 seeds their number is
/// binomial, and is within 3.3 standard deviations in 999 of 1000 such tests. The seeds are fixed.
#[test]
fn origin_unmasks_by_the_share_of_time_of_a_step() {
    let (seeds, masks) = (1000_u32, 12_u32);
    let first = |seed: u32| {
        let task = Denoise { seed: seed.into(), ..task(4, Algorithm::Origin) };
        let sample = run(&task, &case(), masks as usize, false);
        sample.unmasked[0].iter().filter(|&&step| step == 0).count() as f64
    };
    let found: f64 = (0..seeds).map(first).sum();
    let (count, share) = (f64::from(seeds * masks), 1.0 - 0.75025);
    let deviation = (count * share * (1.0 - share)).sqrt();
    let away = (found - count * share) / deviation;
    assert!(away.abs() < 3.3, "{found} of {count} is {away} standard deviations from {}", count * share);
}

#[test]
fn positions_that_are_drawn_favour_the_sure() {
    let at = |alg_temp: f32| {
        let first = |seed| {
            let task = Denoise { alg_temp, seed, ..task(6, Algorithm::MaskgitPlus) };
            let sample = run(&task, &case(), 7, false);
            sample.unmasked[0].iter().position(|&step| step == 0).unwrap_or(7) as u64
        };
        (0..200).map(first).sum::<u64>() as f64 / 200.0
    };
    // 0.02 is nearly the surest, the last; 1e6 is any of seven, 3 on average.
    assert!(at(0.02) > 5.0, "{}", at(0.02));
    assert!((at(1e6) - 3.0).abs() < 0.5, "{}", at(1e6));
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let good = task(4, Algorithm::Entropy);
    let checked = |task: &Denoise, mask, case: MaskedCase| check(&work(task, &case, 4, false), mask, false);
    assert_eq!(checked(&good, Some(MASK), case()).unwrap(), MASK);
    let refused = |task: &Denoise, mask, case| checked(task, mask, case).unwrap_err().to_string();
    assert!(refused(&good, None, case()).contains("token by token"));
    assert!(refused(&good, Some(2), case()).contains("the prompt holds the mask, token 2"));
    assert!(refused(&Denoise { steps: 0, ..good }, Some(MASK), case()).contains("0 steps"));
    assert!(refused(&Denoise { eps: 1.0, ..good }, Some(MASK), case()).contains("eps is 1"));
    assert!(refused(&Denoise { top_p: Some(0.0), ..good }, Some(MASK), case()).contains("top_p"));
}
