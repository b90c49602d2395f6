use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use protocol::{Event, Marks, Output};

use super::*;
use crate::facts::testing;
use crate::judge::report::warnings::Figures;
use crate::plan;
use crate::plan::WorkKind::{Denoising, OneToken, TokenByToken};

fn case(first_ms: u64, gaps_ms: &[u64]) -> Sample {
    let gaps_ns = gaps_ms.iter().map(|ms| ms * 1_000_000);
    Sample { marks_ns: Marks::new(first_ms * 1_000_000, gaps_ns), ..Sample::default() }
}

/// The figures of `a`, by round; its processes had these requests of one prompt.
fn figures(metric: Metric, processes: Vec<Vec<Sample>>) -> Vec<Option<f64>> {
    let process = |(round, requests): (usize, Vec<Sample>)| {
        testing::measured("a", round, Vec::new(), requests.into_iter().map(|request| vec![request]).collect())
    };
    let runs = processes.into_iter().enumerate().map(process).collect();
    by_round(metric, &testing::plan(&["a"]), &Evidence { runs, ..Evidence::default() }, "a")
}

fn figure(metric: Metric, requests: Vec<Sample>) -> Option<f64> {
    figures(metric, vec![requests])[0]
}

#[test]
fn a_mean_is_of_requests_a_percentile_of_gaps_and_a_peak_the_highest() {
    let requests = || vec![case(50, &[10, 10, 10]), case(30, &[10, 60, 20])];
    let close = |metric: Metric, expected: f64| {
        let found = figure(metric, requests()).unwrap();
        assert!((found / expected - 1.0).abs() < 1e-12, "{metric:?}: {found} and {expected}");
    };
    // Six tokens in 120 ms.
    close(Metric::Latency, 20.0);
    close(Metric::Throughput, 50.0);
    close(Metric::FirstToken, 40.0);
    close(Metric::Total, 100.0);
    close(Metric::PeakThroughput, 100.0);
    close(Metric::LatencyP50, 10.0);
    // Type 7: the sixth of six values and the one before, by 0.75 of their distance.
    close(Metric::LatencyP95, 20.0 + 0.75 * 40.0);
}

#[test]
fn what_is_tested_is_typical_slices_and_what_is_shown_all_of_them() {
    // Gaps grow, and one of the first contender was disturbed.
    let request = |label: &str, every: usize| {
        let gap = |gap: u64| if gap == 10 && label == "a" { 500 } else { 10 + gap };
        let gaps: Vec<u64> = (0..30).map(gap).collect();
        Sample { lead_in: (0..30).step_by(every).collect(), ..case(50, &gaps) }
    };
    let ratio = |metric: Metric, every: usize, is_shown: bool| {
        let of = |label| testing::measured(label, 0, Vec::new(), vec![vec![request(label, every)]]);
        let evidence = Evidence { runs: vec![of("a"), of("b")], ..Evidence::default() };
        let plan = Plan { schedule: plan::Schedule::Interleaved, ..testing::plan(&["a", "b"]) };
        let figure = |label| match is_shown {
            true => by_round(metric, &plan, &evidence, label)[0].unwrap(),
            false => typical(metric, 0..1, &plan, &evidence, label)[0].unwrap(),
        };
        figure("a") / figure("b")
    };
    // Of ten slices, the slowest and the fastest are left out; of five, none.
    assert!((ratio(Metric::Throughput, 3, false) - 1.0).abs() < 1e-9);
    let slow: f64 = (17.0 + 18.0 + 19.0 + 500.0 + 21.0) / 95.0;
    assert!((ratio(Metric::Latency, 6, false) / slow.powf(0.2) - 1.0).abs() < 1e-9);
    assert!((ratio(Metric::Total, 3, false) - (785.0 + 480.0) / 785.0).abs() < 1e-9);
    // Of the gaps that count, all count: without the steps after a pause, 0, 3, …, 27.
    let timed: u64 = (0..30).filter(|gap| gap % 3 != 0).map(|gap| 10 + gap).sum();
    assert!((ratio(Metric::Latency, 3, true) - (timed as f64 + 480.0) / timed as f64).abs() < 1e-9);
}

#[test]
fn what_was_not_measured_is_absent_and_not_zero() {
    for metric in [Metric::Throughput, Metric::LatencyP99, Metric::PeakThroughput, Metric::PeakMemory] {
        assert_eq!(figure(metric, vec![case(50, &[])]), None, "{metric:?}");
    }
}

fn requests() -> impl Strategy<Value = Vec<Sample>> {
    let request = (1..9_000_000_u64, prop::collection::vec(1..900_000_000_u64, 1..40));
    let request = request.prop_map(|(first_ns, gaps_ns)| Sample {
        marks_ns: Marks::new(first_ns, gaps_ns),
        ..Sample::default()
    });
    prop::collection::vec(request, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn figures_are_in_order_whatever_was_measured(
        a in requests(), b in requests(), c in prop::collection::vec(requests(), 3), together in any::<bool>(),
    ) {
        // Contenders that take turns influence each other's figures.
        let mut plan = testing::plan(&["a", "b"]);
        plan.schedule = if together { plan::Schedule::Interleaved } else { plan::Schedule::Sequential };
        let process = |label: &str, round: usize, requests: &[Sample]| {
            let iterations = requests.iter().map(|request| vec![request.clone()]).collect();
            testing::measured(label, round, Vec::new(), iterations)
        };
        let a: Vec<Run> =
            [&a].into_iter().chain(&c).enumerate().map(|(round, of)| process("a", round, of)).collect();
        let b = (0..a.len()).map(|round| process("b", round, &b));
        let evidence = Evidence { runs: a.into_iter().chain(b).collect(), ..Evidence::default() };
        for label in ["a", "b"] {
            let of = |metric| crate::judge::report::Figure::new(metric, by_round(metric, &plan, &evidence, label), Vec::new());
            for &metric in Metric::ALL {
                let found = of(metric);
                if let (Some(min), Some(typical), Some(max)) = (found.min, found.typical, found.max) {
                    prop_assert!(min <= typical * 1.000_001 && typical <= max * 1.000_001, "{:?}", found);
                }
            }
            let percentiles = [Metric::LatencyP50, Metric::LatencyP90, Metric::LatencyP95];
            let percentiles = percentiles.map(|metric| of(metric).typical.unwrap());
            prop_assert!(percentiles.is_sorted_by(|a, b| *a <= b * 1.000_001), "{:?}", percentiles);
            let [average, peak, latency] =
                [Metric::Throughput, Metric::PeakThroughput, Metric::Latency].map(|metric| of(metric).typical.unwrap());
            prop_assert!(peak * 1.000_001 >= average, "{} {}", peak, average);
            prop_assert!((latency * average / 1000.0 - 1.0).abs() < 1e-9);
        }
    }
}

#[test]
fn a_99th_percentile_is_of_all_processes_and_at_least_300_gaps() {
    let of = |rounds: usize| {
        let process = |round| testing::measured("a", round, Vec::new(), vec![vec![case(5, &[10; 100])]]);
        let evidence = Evidence { runs: (0..rounds).map(process).collect(), ..Evidence::default() };
        let plan = testing::plan(&["a"]);
        {
            let figures = Figures::new(Metric::LatencyP99, &plan, &evidence);
            crate::judge::report::Figure::of_row(Metric::LatencyP99, &figures, 0, &plan, &evidence)
        }
    };
    let found = [2, 3, 4].map(|rounds| of(rounds).typical.zip(Some(of(rounds).interval)));
    assert_eq!(found, [None, Some((10.0, None)), Some((10.0, Some((10.0, 10.0))))]);
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
fn a_metric_is_known_by_its_key_and_by_its_words_however_they_are_joined() {
    for text in ["first_token", "first-token", "time-to-first-token", "Time to first token"] {
        assert_eq!(Metric::parse(text), Some(Metric::FirstToken), "{text}");
    }
    assert_eq!(Metric::parse("speed"), None);
    for &metric in Metric::ALL {
        assert_eq!(Metric::parse(&metric.flag()), Some(metric));
        assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
    }
}

#[test]
fn what_is_tested_depends_on_what_requests_do() {
    use Metric::{ColdStart, FirstToken, Load, PeakMemory, PrefillThroughput, Throughput, Total};
    let by_itself = |kind| {
        let mut tested = Metric::tested(kind);
        tested.retain(|metric| metric.follows(kind).is_none());
        tested
    };
    assert_eq!(by_itself(TokenByToken), [Load, ColdStart, FirstToken, Throughput, Total, PeakMemory]);
    assert_eq!(by_itself(OneToken), [Load, ColdStart, PeakMemory, PrefillThroughput]);
    assert_eq!(by_itself(Denoising), [Load, ColdStart, PeakMemory, Metric::DenoisingThroughput]);
    for kind in [TokenByToken, OneToken, Denoising] {
        let deciding = Metric::deciding(kind);
        assert_eq!(Metric::questions(kind)[0], deciding);
        let shares = Metric::tested(kind).into_iter().map(|metric| metric.error_share(kind));
        assert!(shares.fold(0.0, f64::max) == deciding.error_share(kind), "{kind:?}");
    }
    assert_eq!(Metric::questions(TokenByToken), [Throughput, FirstToken, Total]);
    assert_eq!(Metric::ALL.iter().filter(|metric| metric.entry().decides).count(), 1);
}

#[test]
fn every_question_of_speed_has_a_share_of_the_error_rate() {
    use crate::plan::WorkKind::*;
    let kinds = [
        TokenByToken,
        OneToken,
        Denoising,
        Encoding,
        ManyTexts,
        SingleText,
        Callers,
        Arrivals,
        Goodput,
        Graph,
    ];
    for kind in kinds {
        let leads = |metric: &Metric| metric.follows(kind).is_none() && metric.depends_on_speed();
        for metric in Metric::tested(kind).into_iter().filter(leads) {
            assert!(metric.error_share(kind) > 0.0, "{kind:?} {metric:?}");
        }
    }
}

/// Three steps of 30, 20 and 40 ms, including 9 ms of the sampler, for two sequences of six tokens.
fn denoised() -> Sample {
    Sample {
        output: Output::Steps(protocol::Steps {
            tokens: vec![vec![1; 6]; 2],
            unmasked: vec![vec![0, 0, 1, 1, 2, 2]; 2],
            passes_ns: vec![27_000_000, 47_000_000, 87_000_000],
        }),
        ..case(30, &[20, 40])
    }
}

#[test]
fn a_request_of_masked_diffusion_has_steps_in_place_of_gaps() {
    let size = Size { batch: 2, prompt_tokens: 8, audio: None };
    let of = |metric: Metric| metric.of_request(&denoised(), size);
    assert_eq!((of(Metric::StepTime), of(Metric::Total)), (Some(30.0), Some(90.0)));
    assert!((of(Metric::DenoisingThroughput).unwrap() - 12.0 / 0.09).abs() < 1e-9);
    assert!((of(Metric::StepsPerSecond).unwrap() - 3.0 / 0.09).abs() < 1e-9);
    assert!((of(Metric::SamplerShare).unwrap() - 10.0).abs() < 1e-9);
    let paused = Sample { lead_in: vec![1], ..denoised() };
    assert_eq!(Metric::StepTime.of_request(&paused, size), Some(25.0), "without the step after a pause");
    assert_eq!(Metric::Total.of_request(&paused, size), Some(90.0));
    let slices = Metric::StepTime.of_parts(&Sample { lead_in: vec![0], ..denoised() }, size);
    assert_eq!(slices, [35.0], "of the first and the last step");
    assert_eq!(Metric::StepTime.of_request(&case(30, &[20, 40]), size), None, "it went token by token");
    assert_eq!(Metric::Load.of_request(&denoised(), size), None, "a process has it once");
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

#[test]
fn what_no_worker_can_have_had_is_told_from_what_one_can() {
    for &metric in Metric::ALL {
        assert!([1e-9, 1.0, 100.0].into_iter().all(|figure| metric.is_possible(figure)), "{metric:?}");
        for figure in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308] {
            assert!(!metric.is_possible(figure), "{metric:?}: {figure}");
        }
    }
    assert!(!Metric::Load.is_possible(0.0) && Metric::Startup.is_possible(0.0));
    assert!(Metric::PaddingShare.is_possible(0.0), "nothing is padded");
    assert!(!Metric::PeakMemory.is_possible(18_446_744_073.7), "2^64 bytes");
    let said = Metric::Latency.check("a", [None, Some(2.0), Some(1e308)]);
    assert_eq!(said.unwrap_err(), "latency of a is 1e308 ms, which cannot be");
}

// The schemas and the page of measures agree with the types and the table of metrics. `UPDATE_SCHEMAS=1
// cargo xtask test -p comparison` writes the metrics of the table into the schemas.

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The part of a document between two markers, without them.
fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let begin = text.find(from).expect("the schema has a list of metrics") + from.len();
    let end = begin + text[begin..].find(to).expect("the list of metrics has an end");
    &text[begin..end]
}

/// Compares the part of `docs/NAME` between two markers with the table, or writes it.
fn hold(name: &str, from: &str, to: &str, said: &str) {
    let path = docs(name);
    let before = text(&path);
    let written = part(&before, from, to);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, before.replacen(written, said, 1)).unwrap();
        return;
    }
    assert_eq!(written, said, "docs/{name}: UPDATE_SCHEMAS=1 cargo xtask test -p comparison");
}

#[test]
fn the_schema_of_reports_names_the_metrics_of_the_table() {
    let names: Vec<String> =
        Metric::ALL.iter().map(|metric| format!("            \"{}\"", metric.name())).collect();
    let said = format!("\n{}\n          ", names.join(",\n"));
    hold("report.schema.json", "\"metric\": {\n          \"enum\": [", "]", &said);
}

#[test]
fn the_schema_of_the_history_defines_the_metrics_of_the_table() {
    let mut said = String::from("\n");
    for (place, metric) in Metric::ALL.iter().enumerate() {
        let (key, unit, better) = (metric.name(), metric.unit(), metric.higher_is_better());
        let definition = metric.definition();
        let comma = if place + 1 < Metric::ALL.len() { "," } else { "" };
        write!(
            said,
            r##"        "{key}": {{
          "description": "{definition}",
          "allOf": [
            {{"$ref": "#/$defs/figure"}},
            {{"properties": {{"unit": {{"const": "{unit}"}}, "higher_is_better": {{"const": {better}}}}}}}
          ]
        }}{comma}
"##
        )
        .unwrap();
    }
    said += "      ";
    let from = "\"description\": \"By name. What was not available is not here\",\n      \"type\": \"object\",\n      \"properties\": {";
    hold("history.schema.json", from, "},\n      \"additionalProperties\"", &said);
}

#[test]
fn the_page_of_measures_defines_every_metric() {
    let measures = text(&docs("reference/measures.md"));
    for &metric in Metric::ALL {
        let name = format!("| `{}` |", metric.name());
        let row = measures.lines().find(|line| line.contains(&name));
        let row = row.unwrap_or_else(|| panic!("docs/reference/measures.md does not define {name}"));
        assert!(row.contains(metric.title()), "{row}");
        assert!(metric.title().ends_with(&format!("({})", metric.unit())), "{}", metric.title());
        assert!(!metric.definition().is_empty(), "{name}");
    }
}
