//! What does not fit into memory is refused before it starts; what turns out not to fit is a row.

use crate::common::Installation;

#[test]
fn a_worker_that_runs_out_of_memory_is_a_row_that_says_so() {
    let installation =
        Installation::new().engine("good", &[]).engine("bad", &[("fault", "memory"), ("fault_at", "3")]);
    let ran = installation.run(&["--frameworks", "good,bad", "--rounds", "1", "--format", "json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let report = ran.json();
    let rows = report["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["framework"] == name).unwrap();
    assert_eq!(
        (row("good")["state"].as_str(), row("bad")["state"].as_str()),
        (Some("measured"), Some("failed"))
    );
    let reason = row("bad")["reasons"][0].as_str().unwrap();
    let expected = "out of memory: memory allocation of 1073741824 bytes failed; ";
    assert!(
        reason.starts_with(expected) && reason.ends_with(" GB were available when it started"),
        "{reason}"
    );
    let mut ends = installation.all_samples().into_iter().filter(|fact| fact["fact"] == "ended");
    let failed = ends.find(|end| end["process"]["framework"] == "bad").unwrap();
    assert_eq!(failed["failure"]["kind"], "out_of_memory");
    assert!(ran.stderr.contains("to repeat it: "), "{}", ran.stderr);
}

#[test]
fn a_worker_is_the_first_that_the_kernel_kills() {
    let installation = Installation::new().engine("slow", &[("fault", "hang")]);
    let mut command = installation.driver(&["--frameworks", "slow", "--rounds", "1", "--timeout", "3"]);
    let mut child =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let read =
        |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let mut first_to_die = false;
    while child.try_wait().unwrap().is_none() {
        let children = read(child.id(), &format!("task/{}/children", child.id()));
        let worker = children.split_whitespace().find_map(|pid| pid.parse::<u32>().ok());
        first_to_die |= worker.is_some_and(|pid| read(pid, "oom_score_adj").trim() == "1000");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(first_to_die);
}

/// 2^28 tokens of 2 · 32 values of 4 bytes each: 68.7 GB for each sequence.
#[test]
fn a_batch_that_does_not_fit_is_refused_with_the_arithmetic() {
    let installation = Installation::new().engine("one", &[]);
    let config = installation.path("model/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 268435455"),
    )
    .unwrap();
    let arguments = ["--frameworks", "one", "--batch", "4096", "--new-tokens", "268435000"];
    installation.run(&arguments).refused(&[
        "does not fit into memory: weights 0.00 GB at f32 + KV cache 281474",
        "GB are available; take a smaller batch or fewer tokens",
    ]);
}
