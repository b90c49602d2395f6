//! Comparisons on a GPU that is played: the mock's workers compute on it, and a library in NVML's place tells of it.

use std::path::PathBuf;

use insta::assert_snapshot;
use nvml_fake::{Device, Process, Script};
use serde_json::Value;

use crate::common::{Installation, Ran, row};

/// What every mock here can do: 2,000 GB/s, with 10 GB in use.
const GPU: [(&str, &str); 3] =
    [("gpu_bandwidth", "2000"), ("gpu_gflops", "100000"), ("gpu_memory_mb", "10000")];
const QUIET: [&str; 4] = ["--device", "cuda", "--quiet", "--seed=1"];

/// A step reads 13.65 MB, which takes 6.82 µs at 2,000 GB/s: so long are steps at 60 % of that, and at 1.4 times it.
const AT_60_PERCENT: &str = "0.01137";
const AT_1_4_TIMES: &str = "0.004875";

struct Machine {
    installation: Installation,
    library: PathBuf,
}

impl Machine {
    fn new(installation: Installation, script: &Script) -> Machine {
        let library = nvml_fake::install(installation.directory.path(), script).unwrap();
        Machine { installation, library }
    }

    /// With these contenders on an idle GPU: name and time of a step.
    fn idle(contenders: &[(&str, &str)]) -> Machine {
        Machine::new(installation(contenders, &[]), &Script::default())
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.installation.driver(arguments);
        Ran::from(command.env("PHOTOFINISH_NVML", &self.library).output().unwrap())
    }

    fn compare(&self, frameworks: &str, more: &[&str]) -> Ran {
        self.run(&[&["compare", "--frameworks", frameworks], &QUIET[..], more].concat())
    }

    fn report(&self) -> Value {
        let text = std::fs::read_to_string(self.installation.results().join("report.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.installation.results().join(name)).unwrap()
    }
}

fn installation(contenders: &[(&str, &str)], more: &[(&str, &str)]) -> Installation {
    contenders.iter().fold(Installation::large(), |installation, (name, token_ms)| {
        let own =
            [("token_ms", *token_ms), ("prefill_token_ms", "0.01"), ("load_ms", "100"), ("kv_cache", "true")];
        installation.timed(name, &[&own[..], &GPU, more].concat())
    })
}

/// The lines of the findings that speak of the GPU.
fn of_gpu(report: &Value) -> String {
    let details = report["summary"]["details"].as_array().unwrap();
    let lines = details.iter().map(|line| line.as_str().unwrap());
    let told =
        lines.filter(|line| ["cuda:0", "against weights", "GPU"].iter().any(|word| line.contains(word)));
    told.collect::<Vec<_>>().join("\n")
}

fn impossible(report: &Value) -> Vec<&str> {
    let flags = report["sanity"].as_array().unwrap();
    flags.iter().map(|flag| flag["finding"].as_str().unwrap()).collect()
}

#[test]
fn figures_on_a_gpu_are_the_gpu_s() {
    let machine = Machine::idle(&[("a", AT_60_PERCENT), ("b", "0.02")]);
    let ran = machine.compare("a,b", &[]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let report = machine.report();
    assert_eq!(impossible(&report), [""; 0]);
    let table: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("Peak Memory")).collect();
    assert!(table.first().is_some_and(|row| row.contains("10.0")), "{}", ran.stdout);
    assert_snapshot!(of_gpu(&report), @r"
    share of cuda:0's limit, decode: a 60 % of 2000 GB/s; b 34 % of 2000 GB/s
    share of cuda:0's limit, prefill: a 17 % of 2000 GB/s; b 17 % of 2000 GB/s
    cuda:0: memory bandwidth 2000 GB/s (range 2000–2000), f16 arithmetic 100000 GFLOP/s (range 100000–100000)
    peak memory against weights + KV cache: a 727.96x of 14 MB; b 727.96x of 14 MB
    peak memory is what each process held on cuda:0, as its driver told after each phase
    cuda:0 in measured requests: a 1980 of 1980 MHz, 35 °C at most; b 1980 of 1980 MHz, 35 °C at most
    ");
    // The page and the history say the same.
    let page = machine.file("report.html");
    assert!(page.contains("Memory of the host by part") && page.contains("2000 GB/s"));
    assert!(page.contains("NVIDIA Simulated 80GB"));
    let history = std::fs::read_to_string(machine.installation.path("results/history.jsonl")).unwrap();
    let records: Vec<Value> = history.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 2);
    for record in records {
        let bandwidth = record["machine"]["read_bandwidth"].as_f64().unwrap();
        assert!((bandwidth / 2e12 - 1.0).abs() < 0.01, "{bandwidth}");
        let peak = record["metrics"]["peak_memory"]["median"].as_f64().unwrap();
        assert!((peak / 10.0 - 1.0).abs() < 0.01, "{peak}");
    }
}

#[test]
fn steps_that_outrun_the_gpu_s_memory_are_impossible() {
    let machine = Machine::idle(&[("a", AT_1_4_TIMES)]);
    let ran = machine.compare("a", &[]);
    let report = machine.report();
    let [finding] = impossible(&report)[..] else { panic!("{}{}", ran.stdout, ran.stderr) };
    assert!(finding.contains("but cuda:0 was measured to read 2000.0 GB/s"), "{finding}");
}

#[test]
fn an_engine_that_does_not_wait_for_the_gpu_is_found_out() {
    let installation = installation(&[("a", "1")], &[("synchronises", "false")]);
    let machine = Machine::new(installation, &Script::default());
    machine.compare("a", &[]);
    let report = machine.report();
    // It seems to take no time at all.
    let found = format!("{}{}", report["sanity"], row(&report, "a")["reasons"]);
    assert!(found.contains("above_bandwidth") || found.contains("impossible"), "{found}");
}

#[test]
fn what_disturbs_a_gpu_is_complained_of() {
    let busy = Device {
        processes: vec![Process { pid: 1, bytes: None }],
        throttle: vec![0x40],
        ..Device::default()
    };
    let machine = Machine::new(installation(&[("a", "1")], &[]), &Script::one(busy));
    machine.compare("a", &["--rounds", "2"]);
    let complaints = machine.report()["machine"]["complaints"].to_string();
    assert!(complaints.contains("another process computed on the GPU"), "{complaints}");
    assert!(complaints.contains("the GPU was slowed down by heat"), "{complaints}");
}

#[test]
fn what_a_gpu_does_not_tell_is_said_with_its_reason() {
    let silent = Device::default().failing("processes", "no_permission").failing("energy", "not_supported");
    let script = Script::one(Device { mig: Some(true), throttle: vec![0x4], ..silent });
    let machine = Machine::new(installation(&[("a", "1")], &[]), &script);
    let ran = machine.compare("a", &["--rounds", "2"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let report = machine.report();
    assert_eq!(row(&report, "a")["memory"]["gpu"], Value::Null);
    assert_snapshot!(of_gpu(&report), @r"
    share of cuda:0's limit, decode: a 1 % of 2000 GB/s
    share of cuda:0's limit, prefill: a 17 % of 2000 GB/s
    cuda:0: memory bandwidth 2000 GB/s (range 2000–2000), f16 arithmetic 100000 GFLOP/s (range 100000–100000)
    peak memory on cuda:0 is not available
    cuda:0 in measured requests: a 1980 of 1980 MHz, 35 °C at most, slowed down by its power limit
    the GPU is divided (MIG): its clocks, its energy and its heat are those of all parts
    the GPU's energy is not available: this GPU does not tell
    the list of the GPU's processes is not available: this user may not ask NVIDIA's driver
    ");
}

#[test]
fn without_a_gpu_each_contender_has_a_sentence_and_auto_takes_the_cpu() {
    let none = Script { devices: Vec::new(), ..Script::default() };
    let machine = Machine::new(installation(&[("a", "1"), ("b", "1")], &[]), &none);
    let ran = machine.compare("a,b", &[]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let sentence = "no device cuda:0 was found: NVIDIA's driver sees no GPU";
    assert_eq!(ran.stderr.trim_end(), format!("error: a: {sentence}; b: {sentence}"));
    let ran = machine.run(&["compare", "--frameworks", "a", "--device", "auto", "--rounds", "2"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("--device auto: the CPU, since NVIDIA's driver sees no GPU"),
        "{}",
        ran.stderr
    );
    assert_eq!(machine.report()["plan"]["device"], "cpu");
}

#[test]
fn auto_takes_a_gpu_that_every_worker_can_use() {
    let machine = Machine::idle(&[("a", "1")]);
    let machine = Machine { installation: machine.installation.timed("of_cpu", &[]), ..machine };
    let auto = ["--device", "auto", "--rounds", "2"];
    let ran = machine.run(&[&["compare", "--frameworks", "a,of_cpu"], &auto[..]].concat());
    let why = "--device auto: the CPU, since of_cpu's worker cannot use the GPU: the mock plays no GPU";
    assert!(ran.stderr.contains(why), "{}", ran.stderr);
    std::fs::remove_dir_all(machine.installation.results()).unwrap();
    machine.run(&[&["compare", "--frameworks", "a"], &auto[..]].concat());
    assert_eq!(machine.report()["plan"]["device"], "cuda:0");
}

#[test]
fn what_a_worker_does_not_read_of_its_gpu_is_read_for_it() {
    let unread = ["started", "loaded", "cold_start", "warmup", "usage"];
    let unread = unread.map(|event| format!("{event}/memory/gpu=null")).join(";");
    let more = [("say", unread.as_str()), ("gpu_allocated_mb", "8000")];
    let machine = Machine::new(installation(&[("a", "1")], &more), &Script::default());
    let ran = machine.compare("a", &["--rounds", "2"]);
    let report = machine.report();
    assert_eq!(row(&report, "a")["memory"]["gpu"], 10e9, "{}{}", ran.stdout, ran.stderr);
    let told = of_gpu(&report);
    assert!(told.contains("the frameworks' own allocators handed out at most: a 8.00 GB"), "{told}");
}

#[test]
fn several_gpus_share_the_weights_of_each_contender() {
    let two = Script { devices: vec![Device::default(), Device::default()], ..Script::default() };
    let machine = Machine::new(installation(&[("a", "1")], &[]), &two);
    let run = |device: &str, more: &[&str]| {
        machine.run(&[&["compare", "--frameworks", "a", "--rounds", "2", "--device", device], more].concat())
    };
    // No engine here divides its weights; references do.
    let ran = run("cuda:0,cuda:1", &[]);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(ran.code == Some(1) && said.contains("not divided over devices (2 were asked for)"), "{said}");
    for (device, more, sentence) in [
        ("cuda:0,cuda:2", &[][..], "NVIDIA's driver sees 2 GPUs, counted from 0, and no cuda:2"),
        ("cuda:1,cuda:1", &[], "the same GPU twice: name each once"),
        ("cuda:0", &["--shards", "2"], "--device cuda:0 names 1; leave --shards out"),
        ("cuda:0,cpu", &[], "must be auto, cpu or cuda[:N]"),
    ] {
        let ran = run(device, more);
        assert!(ran.code != Some(0) && ran.stderr.contains(sentence), "{}", ran.stderr);
    }
}

#[test]
fn two_comparisons_at_a_time_do_not_share_a_machine_s_gpus() {
    let machine = Machine::idle(&[("a", "1")]);
    let cache = machine.installation.path("cache/photofinish");
    std::fs::create_dir_all(&cache).unwrap();
    let other = std::fs::File::create(cache.join("gpu.lock")).unwrap();
    other.lock().unwrap();
    let ran = machine.compare("a", &["--rounds", "2"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("another comparison computes on a GPU of this machine"), "{}", ran.stderr);
    assert_eq!(machine.compare("a", &["--rounds", "2", "--fair-comparison=false"]).code, Some(0));
    other.unlock().unwrap();
    assert_eq!(machine.compare("a", &["--rounds", "2"]).code, Some(0));
}
