//! Models of masked diffusion: `denoise`, comparisons and the sweep.

use serde_json::{Value, json};

use crate::common::{Installation, row};

fn installation() -> Installation {
    Installation::diffusion().timed("one", &[]).timed("two", &[])
}

const DENOISE: [&str; 7] = ["denoise", "--framework", "one", "--tokens", "1,2,3", "--format", "json"];

#[test]
fn every_state_is_printed_and_the_last_holds_no_mask() {
    let installation = installation();
    for algorithm in ["maskgit_plus", "topk_margin", "entropy", "origin"] {
        let more = ["--new-tokens", "8", "--steps", "4", "--algorithm", algorithm, "--seed", "3"];
        let ran = installation.run(&[&DENOISE[..], &more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let told = ran.json();
        let keys: Vec<&String> = told.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["framework", "precision", "prompt_tokens", "states", "text", "tokens"]);
        let states: Vec<Vec<u32>> = serde_json::from_value(told["states"].clone()).unwrap();
        assert_eq!((states.len(), states[0].len()), (4, 11));
        let masks = |state: &Vec<u32>| state[3..].iter().filter(|&&token| token == 15).count();
        assert!(states.windows(2).all(|two| masks(&two[0]) >= masks(&two[1])), "{states:?}");
        assert_eq!(serde_json::to_value(&states[3][3..]).unwrap(), told["tokens"]);
    }
}

#[test]
fn a_seed_that_is_drawn_is_told() {
    let ran = installation().run(&[&DENOISE[..], &["--temperature", "0.7"]].concat());
    assert!(ran.code == Some(0) && ran.stderr.contains("--seed "), "{}", ran.stderr);
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let diffusion = installation();
    let denoise = |more: &[&str]| diffusion.run(&[&DENOISE[..], more].concat());
    denoise(&["--new-tokens", "4", "--steps", "5"]).refused(&["5 steps for 4 new tokens", "--steps 4"]);
    denoise(&["--new-tokens", "4", "--steps", "1,2"]).refused(&["--steps takes one value here"]);
    denoise(&["--eps", "1"]).refused(&["--eps", "less than 1"]);
    let prompt = ["denoise", "--framework", "one", "--tokens", "1,15"];
    diffusion.run(&prompt).refused(&["the prompt holds the mask, token 15"]);
    let generate = ["generate", "--framework", "one", "--tokens", "1,2"];
    diffusion.run(&generate).refused(&["generates by masked diffusion", "photofinish denoise"]);
    diffusion.run(&["--frameworks", "one", "--context", "4"]).refused(&["leave --context out"]);
    diffusion.run(&["--frameworks", "one", "--kv-cache", "off"]).refused(&["no KV cache to switch off"]);
    diffusion.run(&["parity", "--frameworks", "one"]).refused(&["the logits of every step"]);

    let usual = Installation::new().engine("one", &[]);
    usual.run(&DENOISE).refused(&["token by token", "masked diffusion"]);
    usual.run(&["--frameworks", "one", "--steps", "2"]).refused(&["token by token", "masked diffusion"]);
    usual.run(&["--frameworks", "one", "--autoregressive"]).refused(&["goes token by token anyway"]);
}

#[test]
fn a_mask_outside_the_vocabulary_is_refused() {
    let installation = installation();
    let path = installation.path("model/config.json");
    let text =
        std::fs::read_to_string(&path).unwrap().replace("\"mask_token_id\":15", "\"mask_token_id\":16");
    std::fs::write(&path, text).unwrap();
    installation.run(&DENOISE).refused(&["mask_token_id 16 is outside the vocabulary of 16 tokens"]);
}

#[test]
fn a_comparison_of_denoising_has_steps_in_place_of_gaps() {
    let installation = installation();
    let arguments = ["--frameworks", "one,two", "--new-tokens", "6", "--steps", "3", "--format", "json"];
    let ran = installation.run(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = ran.json();
    for name in ["one", "two"] {
        let row = row(&report, name);
        assert_eq!((&row["state"], &row["agreement"]["broken"]), (&json!("measured"), &Value::Null));
        let figure = |metric: &str| {
            let all = row["metrics"].as_array().unwrap();
            all.iter()
                .find(|figure| figure["metric"] == metric)
                .map(|figure| figure["median"].as_f64().unwrap())
        };
        let (step, total) = (figure("step_time").unwrap(), figure("total").unwrap());
        assert!((total - 3.0 * step).abs() < 0.01 * total, "{step} ms a step, {total} ms in all");
        assert_eq!((figure("latency"), figure("sampler_share").is_some()), (None, true));
    }
    let verdicts = report["comparisons"].as_array().unwrap();
    assert!(verdicts.iter().any(|verdict| verdict["metric"] == "denoising_throughput"), "{verdicts:?}");
    assert!(
        report["summary"]["heading"].as_str().unwrap().contains("6 new tokens each in 3 steps (entropy)")
    );
}

#[test]
fn an_engine_that_computes_something_else_is_struck() {
    let installation = installation().timed("wrong", &[("perturb", "0.5")]);
    let arguments = ["--frameworks", "one,wrong", "--new-tokens", "6", "--rounds", "2", "--format", "json"];
    let report = installation.run(&arguments).json();
    assert_eq!(row(&report, "wrong")["state"], "struck");
}

#[test]
fn the_body_goes_token_by_token_if_that_is_asked_for() {
    let installation = installation();
    let arguments = ["--frameworks", "one", "--rounds", "1", "--autoregressive", "--format", "json"];
    let ran = installation.run(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = ran.json();
    let metrics = row(&report, "one")["metrics"].as_array().unwrap();
    assert!(metrics.iter().any(|figure| figure["metric"] == "latency"));
}

#[test]
fn the_sweep_says_from_how_many_steps_on_diffusion_is_slower() {
    let installation = installation();
    let arguments = ["sweep", "denoise", "--frameworks", "one", "--steps", "2,4,9", "--new-tokens", "6"];
    let ran = installation.run(&[&arguments[..], &["--rounds", "1", "--prompt-tokens", "4"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("9 steps for 6 new tokens"), "{}", ran.stdout);
    assert!(ran.stdout.contains("token by token"), "{}", ran.stdout);
    assert!(ran.stdout.contains("one, "), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("steps on") || ran.stdout.contains("a single step is slower"),
        "{}",
        ran.stdout
    );
}
