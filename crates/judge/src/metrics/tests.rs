use protocol::Event;

use super::*;
use crate::testing;
use plan::Generation::{Denoising, OneToken, TokenByToken};

fn run(cases: Vec<CaseSample>) -> Run {
    testing::measured("x", 0, Vec::new(), vec![cases])
}

fn case(first_ms: u64, gaps_ms: &[u64]) -> CaseSample {
    let gaps_ns = gaps_ms.iter().map(|ms| ms * 1_000_000).collect();
    CaseSample { first_token_ns: first_ms * 1_000_000, gaps_ns, tokens: Vec::new(), ..CaseSample::default() }
}

#[test]
fn throughput_is_work_over_time_and_latency_its_reciprocal() {
    let run = run(vec![case(50, &[10, 10, 10]), case(30, &[10, 50, 10])]);
    let work = Work { batch: 2, prompt_tokens: 40 };
    assert_eq!(Metric::Latency.of_process(&run, work), Some(100.0 / 6.0));
    assert_eq!(Metric::LatencyP50.of_process(&run, work), Some(10.0));
    assert_eq!(Metric::Throughput.of_process(&run, work), Some(6.0 * 2.0 / 0.1));
    assert_eq!(Metric::PeakThroughput.of_process(&run, work), Some(3.0 * 2.0 / 0.03));
    assert_eq!(Metric::FirstToken.of_process(&run, work), Some(40.0));
    assert_eq!(Metric::PrefillThroughput.of_process(&run, work), Some(40.0 / 0.08));
}

#[test]
fn what_was_not_measured_is_absent_and_not_zero() {
    let run = run(vec![case(50, &[])]);
    let work = Work { batch: 1, prompt_tokens: 4 };
    assert_eq!(Metric::Throughput.of_process(&run, work), None);
    assert_eq!(Metric::PeakMemory.of_process(&run, work), None);
    assert_eq!(Metric::Load.of_process(&run, work), None);
}

#[test]
fn a_round_that_was_interrupted_keeps_what_it_had() {
    let loaded = || vec![Event::Loaded(testing::loaded(1))];
    let runs =
        vec![testing::run("a", 0, loaded()), testing::run("b", 0, loaded()), testing::run("b", 1, loaded())];
    let evidence = Evidence { runs, rounds: 1, ..Evidence::default() };
    let plan = testing::plan(&["a", "b"]);
    assert_eq!(by_round(Metric::Load, &plan, &evidence, "a"), [Some(0.001), None]);
    assert_eq!(by_round(Metric::Load, &plan, &evidence, "b"), [Some(0.001), Some(0.001)]);
}

#[test]
fn a_request_is_computed_by_the_formula_of_a_process() {
    let work = Work { batch: 2, prompt_tokens: 40 };
    let request = case(50, &[10, 20, 30]);
    assert_eq!(Metric::Throughput.of_request(&request, work), Some(6.0 / 0.06));
    assert_eq!(Metric::Latency.of_request(&request, work), Some(20.0));
    assert_eq!(Metric::Total.of_request(&request, work), Some(110.0));
    assert_eq!(Metric::PrefillThroughput.of_request(&request, work), Some(40.0 / 0.05));
    assert_eq!(Metric::Load.of_request(&request, work), None, "what is a process's alone");
}

#[test]
fn a_metric_is_known_by_its_key_and_by_its_words_however_they_are_joined() {
    for text in ["first_token", "first-token", "time-to-first-token", "Time to first token"] {
        assert_eq!(Metric::parse(text), Some(Metric::FirstToken), "{text}");
    }
    assert_eq!(Metric::parse("speed"), None);
    for metric in Metric::ALL {
        assert_eq!(Metric::parse(&metric.flag()), Some(metric));
        assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
    }
}

#[test]
fn one_token_is_tested_by_what_prefill_gives() {
    assert_eq!(Metric::tested(TokenByToken), Metric::TABLE);
    let one = [Metric::Load, Metric::ColdStart, Metric::FirstToken, Metric::PrefillThroughput];
    assert_eq!(Metric::tested(OneToken)[..4], one);
    assert_eq!(
        (Metric::deciding(TokenByToken), Metric::deciding(OneToken)),
        (Metric::Throughput, Metric::PrefillThroughput)
    );
    let decide = Metric::ALL.iter().filter(|metric| metric.entry().decides);
    assert_eq!(decide.count(), 1);
}

/// Three steps of 30, 20 and 40 ms, of which the sampler took 9 ms, for two sequences of six tokens.
fn denoised() -> CaseSample {
    CaseSample {
        tokens: vec![vec![1; 6]; 2],
        unmasked: vec![vec![0, 0, 1, 1, 2, 2]; 2],
        sampler_ns: vec![3_000_000; 3],
        ..case(30, &[20, 40])
    }
}

#[test]
fn a_request_of_masked_diffusion_has_steps_in_place_of_gaps() {
    let work = Work { batch: 2, prompt_tokens: 8 };
    let of = |metric: Metric| metric.of_request(&denoised(), work);
    assert_eq!((of(Metric::StepTime), of(Metric::Total)), (Some(30.0), Some(90.0)));
    assert!((of(Metric::DenoisingThroughput).unwrap() - 12.0 / 0.09).abs() < 1e-9);
    assert!((of(Metric::StepsPerSecond).unwrap() - 3.0 / 0.09).abs() < 1e-9);
    assert!((of(Metric::SamplerShare).unwrap() - 10.0).abs() < 1e-9);
    assert_eq!(Metric::StepTime.of_request(&case(30, &[20, 40]), work), None, "it went token by token");
}

#[test]
fn metrics_of_denoising_take_the_place_of_those_of_decoding() {
    assert_eq!(Metric::deciding(Denoising), Metric::DenoisingThroughput);
    let table = Metric::in_table(Denoising);
    assert!(table.contains(&Metric::StepTime) && !table.contains(&Metric::Latency), "{table:?}");
    assert!(!Metric::all(TokenByToken).contains(&Metric::SamplerShare));
    let all = Metric::all(Denoising);
    assert!(
        table.iter().chain(&Metric::of_a_prompt(Denoising)).all(|metric| all.contains(metric)),
        "{all:?}"
    );
}
