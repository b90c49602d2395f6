//! Models of masked diffusion: `denoise`, comparisons and the sweep.

use serde_json::{Value, json};

use crate::common::{Installation, array, figure, outcome, row, verdict};

fn installation() -> Installation {
    Installation::diffusion().timed("one", &[]).timed("two", &[])
}

const DENOISE: &str = "run --task denoise --framework one --tokens 1,2,3";

#[test]
fn every_state_is_printed_and_the_last_holds_no_mask() {
    let installation = installation();
    for algorithm in ["maskgit_plus", "topk_margin", "entropy", "origin"] {
        let line = format!("{DENOISE} --new-tokens 8 --steps 4 --algorithm {algorithm} --seed 3");
        let told = installation.json(0, &line);
        let keys: Vec<&String> = told.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["framework", "precision", "prompt_tokens", "states", "text", "tokens"]);
        let states: Vec<Vec<u32>> = serde_json::from_value(told["states"].clone()).unwrap();
        assert_eq!((states.len(), states[0].len()), (4, 11));
        let masks = |state: &Vec<u32>| state[3..].iter().filter(|&&token| token == 15).count();
        assert!(states.windows(2).all(|two| masks(&two[0]) >= masks(&two[1])), "{states:?}");
        assert_eq!(serde_json::to_value(&states[3][3..]).unwrap(), told["tokens"]);
    }
    let ran = installation.run(&format!("{DENOISE} --temperature 0.7")).exits(0);
    assert!(ran.stderr.contains("--seed "), "a drawn seed is printed: {}", ran.stderr);
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let of = |more: &str| format!("{DENOISE} {more}");
    let diffusion = installation();
    diffusion.refuses(&[
        (&of("--new-tokens 4 --steps 5"), &["5 steps for 4 new tokens", "--steps 4"]),
        (&of("--new-tokens 4 --steps 1,2"), &["--steps takes one value"]),
        (&of("--eps 1"), &["--eps", "less than 1"]),
        ("run --framework one --tokens 1,15", &["token 15"]),
        ("run --task generate --framework one --tokens 1,2", &["masked diffusion", "leave out --task"]),
        ("--frameworks one --context 4", &["--context"]),
        ("--frameworks one --kv-cache off", &["no KV cache"]),
        ("parity --frameworks one", &["the logits of every step"]),
    ]);
    Installation::new().engine("one", &[]).refuses(&[
        (DENOISE, &["token by token", "masked diffusion"]),
        ("--frameworks one --steps 2", &["token by token", "masked diffusion"]),
        ("--frameworks one --autoregressive", &["token by token"]),
    ]);
    let path = diffusion.path("model/config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"mask_token_id\":15", "\"mask_token_id\":16")).unwrap();
    diffusion.refuses(&[(DENOISE, &["mask_token_id 16", "vocabulary of 16 tokens"])]);
}

#[test]
fn a_comparison_of_denoising_has_steps_in_place_of_gaps() {
    let installation = installation().timed("wrong", &[("perturb", "0.5")]);
    let report = installation.json(1, "--frameworks one,two,wrong --new-tokens 6 --steps 3");
    assert_eq!(outcome(&report, "wrong").0, "struck", "it computes something else");
    for name in ["one", "two"] {
        let row = row(&report, name);
        assert_eq!((&row["state"], &row["agreement"]["broken"]), (&json!("measured"), &Value::Null));
        let figure = |metric: &str| figure(&report, name, metric);
        let (step, total) = (figure("step_time").unwrap(), figure("total").unwrap());
        assert!((total - 3.0 * step).abs() < 0.01 * total, "{step} ms a step, {total} ms in all");
        assert_eq!((figure("latency"), figure("sampler_share").is_some()), (None, true));
    }
    verdict(&report, "denoising_throughput");
    let heading = report["summary"]["heading"].as_str().unwrap();
    assert!(heading.contains("3 steps (entropy)"), "{heading}");
}

#[test]
fn contenders_alternate_within_requests_after_steps() {
    let installation = installation();
    let report = installation.json(0, "--frameworks one,two --rounds 1 --new-tokens 8 --steps 8 --slice 2");
    assert_eq!(report["slices"], json!({ "tokens": 2, "lead_in": 1 }));
    let facts = installation.all_samples();
    let block = facts.iter().find(|fact| fact["fact"] == "block").unwrap();
    for turn in array(&block["turns"]) {
        let sample = &turn[1]["sample"];
        assert_eq!((array(&sample["marks_ns"]).len(), &sample["lead_in"]), (8, &json!([0, 3, 6])));
    }
    for name in ["one", "two"] {
        assert_eq!(row(&report, name)["agreement"]["broken"], Value::Null, "its states are the same");
    }
}

#[test]
fn the_body_goes_token_by_token_if_that_is_asked_for() {
    let report = installation().json(0, "--frameworks one --rounds 1 --autoregressive");
    assert!(figure(&report, "one", "latency").is_some());
}

#[test]
fn the_sweep_says_from_how_many_steps_on_diffusion_is_slower() {
    let line = "sweep denoise --frameworks one --steps 2,4,9 --new-tokens 6 --rounds 1 --prompt-tokens 4";
    let told = installation().run(line).exits(0).stdout;
    assert!(told.contains("9 steps for 6 new tokens") && told.contains("token by token"), "{told}");
    assert!(told.contains("steps on") || told.contains("a single step is slower"), "{told}");
}
