//! Models that hear: compared on recordings, and unfit recordings and flags are refused.

use std::path::Path;

use crate::common::{Installation, array, figure, outcome, program, row};

/// A tiny Whisper without a tokenizer.
fn model() -> String {
    program("prepare");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/fixtures/speech/whisper");
    format!("--model {}", path.display())
}

/// A recording of a hum.
fn recording(installation: &Installation, name: &str, (rate, samples): (u32, usize)) -> String {
    let path = installation.path(name);
    let format = hound::SampleFormat::Int;
    let spec = hound::WavSpec { channels: 1, sample_rate: rate, bits_per_sample: 16, sample_format: format };
    let mut writer = hound::WavWriter::create(&path, spec).unwrap();
    for place in 0..samples {
        writer.write_sample((8000.0 * (place as f32 / 20.0).sin()) as i16).unwrap();
    }
    writer.finalize().unwrap();
    path.display().to_string()
}

#[test]
fn recordings_are_cases_with_an_encoder_and_a_real_time_factor() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let (short, long) = (
        recording(&installation, "short.wav", (16_000, 4_000)),
        recording(&installation, "long.wav", (16_000, 40_000)),
    );
    let line = format!(
        "--frameworks one,two --rounds 2 --new-tokens 6 {} --input short={short} --input long={long}",
        model()
    );
    let report = installation.json(0, &line);
    let seconds = array(&report["plan"]["work"]["generate"]["prompts"]).iter();
    let seconds: Vec<f64> = seconds.map(|prompt| prompt["audio"]["seconds"].as_f64().unwrap()).collect();
    assert_eq!(seconds, [0.8, 0.25], "by name; what the model does not take is cut off");
    for name in ["one", "two"] {
        assert_eq!(row(&report, name)["state"], "measured", "{}", row(&report, name));
        let of = |metric| figure(&report, name, metric).unwrap();
        assert!(of("encoder_time") > 0.0 && of("encoder_time") < of("first_token"), "{name}");
        assert!(of("real_time_factor") > 0.0);
    }
}

#[test]
fn a_worker_that_hears_one_recording_over_and_over_is_struck() {
    let installation = Installation::new().timed("one", &[]).timed("deaf", &[("heard_once", "true")]);
    let hum = recording(&installation, "hum.wav", (16_000, 4_000));
    let line = format!("--frameworks one,deaf --rounds 2 --new-tokens 6 {} --input a={hum}", model());
    let report = installation.json(1, &line);
    assert_eq!(outcome(&report, "deaf").0, "struck", "{}", row(&report, "deaf"));
    assert_eq!(row(&report, "one")["state"], "measured");
}

#[test]
fn what_a_model_cannot_hear_is_refused_in_a_sentence() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let fast = recording(&installation, "fast.wav", (44_100, 400));
    let (model, silent) = (model(), recording(&installation, "silent.wav", (16_000, 0)));
    let hum = recording(&installation, "hum.wav", (16_000, 400));
    let line = |more: &str| format!("--frameworks one,two --rounds 2 --new-tokens 6 {model} {more}");
    let heard = |more: &str| line(&format!("--input a={hum} {more}"));
    let fast = line(&format!("--input a={fast}"));
    let silent = line(&format!("--input a={silent}"));
    installation.refuses(&[
        (&fast, &["it has 44100 samples a second, and the model hears 16000"]),
        (&silent, &["there is no sound in it"]),
        (&line("--input a=0..1"), &["hears recordings: --input a=FILE.wav"]),
        (&heard("--context 4"), &["one recording at a time", "leave --context out"]),
        (&heard("--batch 2"), &["leave --batch out"]),
        (&heard("--callers 2"), &["leave --callers"]),
        (&heard("--runs 2"), &["leave --dim, --state, --runs"]),
    ]);
}
