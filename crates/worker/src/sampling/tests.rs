use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::*;

const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: None, seed: 42 };

fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
    check(&sampling).unwrap();
    let mut sampler = Sampler::new(&sampling, logits.len());
    sampler.begin(0);
    (0..count).map(|_| sampler.draw(logits).unwrap()).collect()
}

/// Logits like a language model's: a few large ones, a long tail.
fn logits(vocabulary: usize) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let tail = |_| -6.0 * random.random::<f32>().powf(0.3);
    let mut logits: Vec<f32> = (0..vocabulary).map(tail).collect();
    for (place, logit) in (0..vocabulary).step_by(vocabulary.div_ceil(9)).zip([3.0, 2.5, 2.5, 1.0, 4.0]) {
        logits[place] = logit;
    }
    logits
}

/// By the definition: (probability, id), the most likely first.
fn expected(sampling: Sampling, logits: &[f32]) -> Vec<(f64, u32)> {
    let mut kept: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    kept.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    kept.truncate(sampling.top_k.unwrap_or(usize::MAX));
    let softmax = |kept: Vec<(f64, u32)>| -> Vec<(f64, u32)> {
        let sum: f64 = kept.iter().map(|(weight, _)| weight).sum();
        kept.into_iter().map(|(weight, id)| (weight / sum, id)).collect()
    };
    let weight = |logit: f32| (f64::from(logit) / f64::from(sampling.temperature)).exp();
    let mut kept = softmax(kept.into_iter().map(|(logit, id)| (weight(logit), id)).collect());
    if let Some(share) = sampling.top_p {
        let mut mass = 0.0;
        let enough = kept.iter().position(|(probability, _)| {
            mass += probability;
            mass >= f64::from(share)
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
    }
    softmax(kept)
}

#[test]
fn tokens_are_drawn_with_their_probabilities() {
    const COUNT: usize = 40_000;
    let logits = logits(50);
    for sampling in [
        PLAIN,
        Sampling { temperature: 0.7, ..PLAIN },
        Sampling { top_k: Some(7), ..PLAIN },
        Sampling { top_p: Some(0.8), ..PLAIN },
        Sampling { temperature: 3.0, top_k: Some(20), top_p: Some(0.9), ..PLAIN },
    ] {
        let mut counts = [0usize; 50];
        draws(sampling, &logits, COUNT).into_iter().for_each(|token| counts[token as usize] += 1);
        let expected = expected(sampling, &logits);
        let (mut statistic, mut seen) = (0.0, 0);
        for &(probability, id) in &expected {
            let (mean, count) = (probability * COUNT as f64, counts[id as usize]);
            statistic += (count as f64 - mean).powi(2) / mean;
            seen += count;
        }
        assert_eq!(seen, COUNT, "no token outside the {} is drawn: {sampling:?}", expected.len());
        let limit = ChiSquared::new((expected.len() - 1) as f64).unwrap().inverse_cdf(0.999);
        assert!(statistic < limit, "χ² = {statistic} exceeds {limit}: {sampling:?}");
    }
}

#[test]
fn every_draw_is_the_inverse_of_the_cumulative_distribution() {
    let logits = logits(3000);
    for sampling in [
        PLAIN,
        Sampling { temperature: 50.0, ..PLAIN },
        Sampling { top_k: Some(400), ..PLAIN },
        Sampling { top_p: Some(0.99), ..PLAIN },
        Sampling { temperature: 2.0, top_k: Some(100), top_p: Some(0.5), ..PLAIN },
    ] {
        let distribution = expected(sampling, &logits);
        let mut random = ChaCha8Rng::seed_from_u64(sampling.seed);
        for token in draws(sampling, &logits, 500) {
            let uniform: f64 = random.sample(OpenClosed01);
            let mut mass = 0.0;
            let reached = distribution.iter().find(|(probability, _)| {
                mass += probability;
                mass >= uniform
            });
            assert_eq!(Some(token), reached.map(|(_, id)| *id), "{sampling:?}");
        }
    }
}

#[test]
fn of_one_candidate_it_is_always_drawn() {
    let logits = logits(100);
    let best = expected(PLAIN, &logits)[0].1;
    for sampling in [
        Sampling { top_k: Some(1), ..PLAIN },
        Sampling { top_p: Some(f32::MIN_POSITIVE), ..PLAIN },
        Sampling { temperature: f32::MIN_POSITIVE, ..PLAIN },
        Sampling { temperature: 0.01, ..PLAIN },
    ] {
        assert!(draws(sampling, &logits, 200).iter().all(|&token| token == best), "{sampling:?}");
    }
}

#[test]
fn limits_that_leave_everything_change_nothing() {
    let logits = logits(100);
    let all = draws(PLAIN, &logits, 500);
    assert_eq!(draws(Sampling { top_k: Some(100), top_p: Some(1.0), ..PLAIN }, &logits, 500), all);
    assert_eq!(draws(Sampling { top_k: Some(usize::MAX), ..PLAIN }, &logits, 500), all);
}

#[test]
fn of_equals_the_first_are_kept() {
    let sampling = Sampling { top_k: Some(3), ..PLAIN };
    // More than there is room for before the first selection.
    let kept: std::collections::BTreeSet<u32> = draws(sampling, &[1.0; 1000], 200).into_iter().collect();
    assert_eq!(kept.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_case_draws_the_same_each_time_and_other_tokens_than_the_next() {
    let logits = logits(100);
    let mut sampler = Sampler::new(&PLAIN, logits.len());
    let mut case = |index: usize, count: usize| -> Vec<u32> {
        sampler.begin(index);
        (0..count).map(|_| sampler.draw(&logits).unwrap()).collect()
    };
    let first = case(0, 33);
    assert_ne!(case(1, 33), first);
    assert_eq!(case(0, 33), first);
    assert_eq!(case(0, 5), first[..5]);
    assert_ne!(draws(Sampling { seed: 43, ..PLAIN }, &logits, 33), first);
}

#[test]
fn noise_of_another_order_of_summation_changes_hardly_a_token() {
    // Twice as far apart, so that the tail has a tenth of the mass; without equal logits, which noise would
    // swap.
    let logits: Vec<f32> =
        logits(5000).into_iter().zip(0..).map(|(x, i)| 2.0 * x + i as f32 * 1e-4).collect();
    let noise = |i: usize| 1e-4 * ((i * 37 % 21) as f32 / 10.0 - 1.0);
    let noisy: Vec<f32> = logits.iter().enumerate().map(|(i, logit)| logit + noise(i)).collect();
    for sampling in [PLAIN, Sampling { temperature: 0.8, top_k: Some(50), top_p: Some(0.95), ..PLAIN }] {
        let same = draws(sampling, &logits, 2000);
        let differ = same.iter().zip(draws(sampling, &noisy, 2000)).filter(|(a, b)| **a != *b).count();
        assert!(differ <= 10, "{differ} of 2000 tokens differ: {sampling:?}");
    }
}

#[test]
fn what_is_no_number_is_never_drawn_and_costs_the_same_of_the_stream() {
    let mut logits = logits(40);
    let masked = [0, 3, 39];
    masked.into_iter().zip([f32::NAN, f32::NEG_INFINITY, f32::NAN]).for_each(|(at, what)| logits[at] = what);
    for sampling in
        [Sampling { temperature: 9.0, ..PLAIN }, Sampling { top_k: Some(39), top_p: Some(0.99), ..PLAIN }]
    {
        assert!(draws(sampling, &logits, 2000).iter().all(|&token| !masked.contains(&(token as usize))));
    }
    let mut sampler = Sampler::new(&PLAIN, logits.len());
    sampler.begin(0);
    for nothing in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [f32::INFINITY; 4]] {
        assert_eq!(sampler.draw(&nothing), None);
    }
    let rest = draws(PLAIN, &logits, 5).split_off(3);
    assert_eq!([sampler.draw(&logits).unwrap(), sampler.draw(&logits).unwrap()], rest[..]);
}

#[test]
fn settings_that_draw_nothing_are_refused() {
    let refused = |sampling| check(&sampling).unwrap_err().to_string();
    for temperature in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(refused(Sampling { temperature, ..PLAIN }).contains("temperature"));
    }
    for top_p in [0.0, -0.5, 1.5, f32::NAN] {
        assert!(refused(Sampling { top_p: Some(top_p), ..PLAIN }).contains("top_p"));
    }
    assert!(refused(Sampling { top_k: Some(0), ..PLAIN }).contains("top_k"));
}

#[test]
fn the_exponential_is_the_standard_library_s() {
    assert_eq!(exp(0.0), 1.0);
    for step in 0..70_000 {
        let x = f64::from(step) * -0.01;
        let (found, right) = (exp(x), x.exp());
        assert!((found - right).abs() <= 4.0 * f64::EPSILON * right, "exp({x}) = {found}, not {right}");
    }
    let least = exp(-700.0);
    assert!(least > 0.0 && least < 1e-300);
    assert!([f64::NEG_INFINITY, f64::NAN, -701.0].iter().all(|&x| exp(x) == least));
}

/// References in Python draw by a port of this; its tests read the same file.
#[test]
fn references_in_python_draw_the_same() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../references/python/tests/drawn.json");
    let drawn: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for of in drawn["uniforms"].as_array().unwrap() {
        let mut random = ChaCha8Rng::seed_from_u64(of["seed"].as_u64().unwrap());
        random.set_stream(of["stream"].as_u64().unwrap());
        for number in of["numbers"].as_array().unwrap() {
            let uniform: f64 = random.sample(OpenClosed01);
            assert_eq!(Some(uniform), number.as_f64(), "{of}");
        }
    }
    for of in drawn["draws"].as_array().unwrap() {
        let sampling: Sampling = serde_json::from_value(of["sampling"].clone()).unwrap();
        let vocabulary = of["vocabulary"].as_u64().unwrap() as u32;
        let logits: Vec<f32> =
            (0..vocabulary).map(|id| (id.wrapping_mul(2_654_435_761) >> 18) as f32 / 2048.0).collect();
        let mut sampler = Sampler::new(&sampling, logits.len());
        for (case, tokens) in of["tokens"].as_array().unwrap().iter().enumerate() {
            sampler.begin(case);
            let expected: Vec<u32> = serde_json::from_value(tokens.clone()).unwrap();
            let found: Vec<u32> = expected.iter().map(|_| sampler.draw(&logits).unwrap()).collect();
            assert_eq!(found, expected, "{sampling:?}");
        }
    }
}
