//! Bad input gets one clear sentence and exit code 2, before anything is measured; what people guess works.

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, photofinish, program};

fn installation() -> Installation {
    Installation::new().engine("one", &[])
}

#[test]
fn what_there_is_not_and_what_makes_no_sense_is_refused() {
    let installation = installation().engine("two", &[]);
    let tiny = "summary = \"\"\nsource = \"x\"\n";
    std::fs::write(installation.path("configs/models/tiny.toml"), tiny).unwrap();
    installation.refuses(&[
        // Unknown names are answered with those there are.
        ("--frameworks one,three", &["\"three\"", "photofinish list frameworks"]),
        ("--model huge", &["\"huge\"", "tiny", ".gguf"]),
        ("--model synthetic:huge", &["\"huge\"", "llama-160m", "gpt2-124m", "llama-70b"]),
        ("--suite other", &["\"other\"", "default"]),
        ("--frameworks one --parity-reference two", &["--parity-reference"]),
        ("--model no/such.gguf", &["no/such.gguf"]),
        ("--rounds 0", &["--rounds"]),
        ("--new-tokens 0", &["--new-tokens"]),
        ("--threads 0", &["--threads"]),
        ("--batch -1", &["-1"]),
        ("--frameworks one --batch 1,2", &["--batch takes one value", "photofinish sweep"]),
        ("--precision f8", &["f32, bf16, f16, int8, int4, nf4"]),
        ("--quantize int8,int3", &["int3", "nf4"]),
        ("--quantize int8 --precision f32", &["--quantize", "--precision"]),
        ("--frameworks one --kv-type int8", &["auto, f32, bf16, f16"]),
        ("--frameworks one --precision int4", &["no int4 weights", "f32, bf16, f16, int8"]),
        ("--device tpu", &["no column computes there"]),
        ("--device disc", &["cuda[:N]"]),
        ("--precision mixed", &["no single precision"]),
        ("--frameworks one --new-tokens 61", &["context of 64 tokens"]),
        ("--frameworks one --prompt-file nowhere.txt", &["nowhere.txt"]),
        // In f32 282 GB: more than the machines of these tests have. On a larger machine this line fails.
        ("--frameworks one --model synthetic:llama-70b", &["does not fit into memory", "282.21 GB at f32"]),
        ("run --framework one --tokens 16", &["vocabulary"]),
        ("run --framework one --tokens one", &["invalid value"]),
        ("run --framework one", &["--prompt"]),
        (&format!("run --framework one --tokens {}", ["1"; 60].join(",")), &["context of 64"]),
    ]);
    assert!(!installation.path("cache/photofinish/bundles").exists(), "nothing was written");
    // No machine has so many.
    let absent = installation.run("--frameworks one --device cuda:60000").exits(1);
    assert!(absent.stderr.contains("one: no device cuda:60000 was found: "), "{}", absent.stderr);

    let file = installation.path("prompts.toml");
    for (text, expected) in [
        ("[[prompts]]\ntokens = [1, 99]\n", "token id 99"),
        ("[[prompts]]\ntokens = []\n", "prompt 1 is empty"),
        ("[[prompts]]\n", "either a text or tokens"),
        ("", "no prompts"),
        ("[[prompts]]\ntoken = [1]\n", "prompts.toml, line 2: unknown field `token`"),
    ] {
        std::fs::write(&file, text).unwrap();
        installation.refuses(&[(&format!("--frameworks one --prompt-file {}", file.display()), &[expected])]);
    }
}

/// 2^28 tokens of 2 · 32 values of 4 bytes each: 68.7 GB for each sequence.
#[test]
fn a_batch_that_does_not_fit_is_refused_with_the_arithmetic() {
    let installation = installation();
    let config = installation.path("model/config.json");
    let mut value = crate::common::read(&config);
    value["max_position_embeddings"] = 268_435_455.into();
    std::fs::write(&config, value.to_string()).unwrap();
    let line = "--frameworks one --batch 4096 --new-tokens 268435000";
    installation.refuses(&[(line, &["weights 0.00 GB at f32", "KV cache 281474", "smaller batch"])]);
}

#[test]
fn a_results_directory_that_cannot_be_written_is_refused() {
    let installation = installation();
    std::fs::remove_dir(installation.path("results")).unwrap();
    std::fs::write(installation.path("results"), "").unwrap();
    installation.run("run --framework one --tokens 1").exits(0);
    installation.refuses(&[("--frameworks one", &["cannot write results to", "--results-dir"])]);
}

#[test]
fn generate_continues() {
    let object = installation().json(0, "run --framework one --tokens 1,2 --new-tokens 3");
    assert_eq!((&object["framework"], &object["precision"]), (&"one".into(), &"f32".into()));
    assert_eq!((&object["prompt_tokens"], array(&object["tokens"]).len()), (&json!([1, 2]), 3));
}

#[test]
fn score_writes_the_file_whole_or_not_at_all() {
    let installation = installation();
    let (ids, out) = (installation.path("ids.json"), installation.path("out.safetensors"));
    let line = format!("run --framework one --tokens-file {} --output {}", ids.display(), out.display());
    for (text, more, said) in [
        ("[[1, 2], [3]]", "", "sequence 1 has 1 tokens"),
        ("[]", "", "no tokens"),
        ("{}", "", "[[id, ..], ..]"),
        ("[[1, 16]]", "", "token id 16"),
        ("[[1, 2]]", "--hidden-states", "no layers"),
    ] {
        std::fs::write(&ids, text).unwrap();
        installation.refuses(&[(&format!("{line} {more}"), &[said])]);
    }
    assert!(!out.exists());
    std::fs::write(&ids, "[[1, 2, 3], [3, 2, 1]]").unwrap();
    assert_eq!(installation.run(&line).exits(0).stdout, "");
    let bytes = std::fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [2, 3, 16]);
}

// Commands and spellings that people guess: they work, or one sentence says what to type.

#[test]
fn names_are_listed_and_a_slip_of_the_pen_is_answered_with_the_nearest() {
    let installation = Installation::new().engine("quick", &[]).engine("steady", &[]);
    let run = |line: &str| {
        let mut command = photofinish(line);
        Ran::output_of(command.arg("--configs").arg(installation.path("configs")))
    };
    let listed = run("list frameworks --format json").exits(0).json();
    let names: Vec<_> = listed["frameworks"].as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, ["quick", "steady"]);
    let all = run("list").exits(0).stdout;
    assert!(all.contains("steady") && all.contains("default"), "{all}");
    run("suites").refused(&["write `list suites` in place of `suites`"]);
    installation.refuses(&[
        ("--frameworks stedy", &["did you mean steady?", "photofinish list frameworks"]),
        ("--frameworks xyz", &["lists the 2 names"]),
    ]);
}

#[test]
fn the_doctor_answers_first_and_names_a_remedy_for_what_cannot_run() {
    let installation = Installation::new().engine("one", &[]);
    installation.of_worker("none", "none", "engine-none", "");
    let mut command = photofinish("doctor");
    command.arg("--configs").arg(installation.path("configs"));
    let workers = program("engine-mock").parent().unwrap().to_path_buf();
    let ran = Ran::output_of(command.arg("--workers").arg(workers)).exits(1);
    assert!(ran.stdout.starts_with("mock can run here; none cannot: remedies below\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("to fix it: cargo xtask build --frameworks none"), "{}", ran.stdout);
}

#[test]
fn an_output_file_gets_the_format_of_its_ending_whole_or_not_at_all() {
    let installation = Installation::new().engine("one", &[]);
    let file = installation.path("table.md");
    let ran = installation.run(&format!("-q --frameworks one --rounds 1 -n 2 -t 1 -o {}", file.display()));
    let ran = ran.exits(0);
    assert!(ran.stdout.is_empty() && std::fs::read_to_string(&file).unwrap().contains("| Model Load"));
    let nowhere = installation.path("absent/table.md");
    let line = format!("--frameworks one -o {}", nowhere.display());
    installation.refuses(&[(&line, &["cannot write", "there is no directory"])]);
}

#[test]
fn other_spellings_get_a_hint_and_times_have_units() {
    let installation = Installation::new().engine("one", &[]);
    let line = "--frameworks one --time-budget 90s --margin 3% --fair-comparison --dry-run --format json";
    let request = &installation.run(line).exits(0).json()["request"];
    assert_eq!((&request["time_budget_min"], &request["margin_percent"]), (&json!(1.5), &json!(3.0)));
    installation.refuses(&[
        ("--dtype f32", &["write `--precision` in place of `--dtype`"]),
        ("--fair-comparison=false", &["write `--allow-unfair` in place of `--fair-comparison`"]),
    ]);
}

#[test]
fn the_newest_page_is_opened_by_its_path() {
    let installation = Installation::new().engine("one", &[]);
    let open = || {
        let mut command = photofinish("report --open");
        // Without a desktop the path is still printed.
        Ran::output_of(command.env("PATH", "").arg("--results-dir").arg(installation.path("results")))
    };
    open().refused(&["no results in"]);
    installation.run("--frameworks one --rounds 1 --iterations 1").exits(0);
    let ran = open().exits(0);
    assert_eq!(ran.stdout.trim_end(), installation.results().join("report.html").to_str().unwrap());
    assert!(ran.stderr.contains("open the file above in a browser"), "{}", ran.stderr);
}

// Models of published shapes; `prepare` draws their weights.

const TINY: &str = "--model synthetic:llama-tiny";

#[test]
fn a_synthetic_model_is_prepared_and_compared_like_any_other() {
    program("prepare");
    let installation = Installation::new().timed("one", &[]);
    let line = format!("--frameworks one --rounds 1 --prompt ab --prompt-tokens 5 {TINY}");
    let report = installation.json(0, &line);
    assert_eq!(report["model"]["name"], "synthetic-llama-tiny");
    assert_eq!(report["rows"][0]["state"], "measured");
    // Ids are drawn in place of the text, up to the length that is asked for, and the report says so.
    let tokens = report["plan"]["work"]["generate"]["prompts"][0]["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 5);
    assert!(report["plan"]["drawn"].as_str().unwrap().contains("a synthetic model has none"));
    let bundles = std::fs::read_dir(installation.path("cache/photofinish/bundles")).unwrap().flatten();
    let names = bundles.map(|entry| entry.file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("synthetic-llama-tiny-")).count(), 1);

    // Text is refused with the reason each time; ids are no text.
    let generate = |more: &str| installation.run(&format!("run --framework one --new-tokens 2 {more}"));
    for _ in 0..2 {
        generate(&format!("{TINY} --prompt Hé"))
            .refused(&["has no tokenizer: a synthetic model has none", "--tokens"]);
    }
    let generated = generate(&format!("{TINY} --tokens 72 --format json")).exits(0).json();
    assert_eq!((&generated["prompt_tokens"], &generated["text"]), (&json!([72]), &Value::Null));
}
