//! Comparisons on a simulated GPU: the mock's workers compute on it, and a file says what it answers.

use std::path::PathBuf;

use gpu::Process;
use gpu::simulated::{Device, Script};
use insta::assert_snapshot;
use serde_json::Value;

use crate::common::{Installation, Ran, array, row};

/// The abilities of every mock here: 2,000 GB/s, with 10 GB in use.
const GPU: [(&str, &str); 3] =
    [("gpu_bandwidth", "2000"), ("gpu_gflops", "100000"), ("gpu_memory_mb", "10000")];

/// A step reads 13.65 MB, which takes 6.82 µs at 2,000 GB/s: these steps last as long as at 60 % of that, and
/// at 1.4 times it.
const AT_60_PERCENT: &str = "0.01137";
const AT_1_4_TIMES: &str = "0.004875";

struct Machine {
    installation: Installation,
    gpus: PathBuf,
}

impl Machine {
    fn new(mut installation: Installation, script: &Script) -> Machine {
        installation.driver = "simulated_gpus";
        let gpus = script.install(installation.directory.path()).unwrap();
        Machine { installation, gpus }
    }

    /// With these contenders on an idle GPU: name and time of a step.
    fn idle(contenders: &[(&str, &str)]) -> Machine {
        Machine::new(installation(contenders, &[]), &Script::default())
    }

    fn run(&self, line: &str) -> Ran {
        Ran::output_of(self.installation.driver(line).env("PHOTOFINISH_NVML", &self.gpus))
    }

    fn compare(&self, frameworks: &str, more: &str) -> Ran {
        self.run(&format!("--frameworks {frameworks} --device cuda --quiet --seed=1 {more}"))
    }

    fn report(&self) -> Value {
        serde_json::from_str(&self.installation.result("report.json")).unwrap()
    }
}

fn installation(contenders: &[(&str, &str)], more: &[(&str, &str)]) -> Installation {
    let all = contenders.iter();
    all.fold(Installation::large(), |installation, contender| with(installation, *contender, more))
}

fn with(all: Installation, (name, token_ms): (&str, &str), more: &[(&str, &str)]) -> Installation {
    let own =
        [("token_ms", token_ms), ("prefill_token_ms", "0.01"), ("load_ms", "100"), ("kv_cache", "true")];
    all.timed(name, &[&own[..], &GPU, more].concat())
}

/// The lines of the findings about the GPU.
fn of_gpu(report: &Value) -> String {
    let lines = array(&report["summary"]["details"]).iter().map(|line| line.as_str().unwrap());
    let told =
        lines.filter(|line| ["cuda:0", "against weights", "GPU"].iter().any(|word| line.contains(word)));
    told.collect::<Vec<_>>().join("\n")
}

#[test]
fn figures_on_a_gpu_are_the_gpu_s() {
    let machine = Machine::idle(&[("a", AT_60_PERCENT), ("b", "0.02")]);
    let ran = machine.compare("a,b", "").exits(0);
    let report = machine.report();
    assert_eq!(array(&report["sanity"]), [Value::Null; 0]);
    let table: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("Peak Memory")).collect();
    assert!(table.first().is_some_and(|row| row.contains("10.0")), "{}", ran.stdout);
    assert_snapshot!(of_gpu(&report), @r"
    share of cuda:0's limit, decode: a 60 % of 2000 GB/s; b 34 % of 2000 GB/s
    share of cuda:0's limit, prefill: a 17 % of 2000 GB/s; b 17 % of 2000 GB/s
    peak memory against weights + KV cache: a 727.96x of 14 MB; b 727.96x of 14 MB
    cuda:0's memory by part (MB): a 9986 context + 14 weights + 0 KV cache = 10000, 10000 on average; b 9986 context + 14 weights + 0 KV cache = 10000, 10000 on average
    cuda:0 in measured requests: a 1980 of 1980 MHz, 35 °C at most; b 1980 of 1980 MHz, 35 °C at most
    cuda:0: memory bandwidth 2000 GB/s (range 2000–2000), f16 arithmetic 100000 GFLOP/s (range 100000–100000)
    peak memory is what each process held on cuda:0, as its driver reported after each phase
    ");
    // The page and the history say the same.
    let page = machine.installation.result("report.html");
    assert!(page.contains("Memory of the host by part") && page.contains("2000 GB/s"));
    assert!(page.contains("NVIDIA Simulated 80GB"));
    let records = machine.installation.records();
    assert_eq!(records.len(), 2);
    for record in records {
        let bandwidth = record["machine"]["read_bandwidth"].as_f64().unwrap();
        assert!((bandwidth / 2e12 - 1.0).abs() < 0.01, "{bandwidth}");
        let peak = record["metrics"]["peak_memory"]["typical"].as_f64().unwrap();
        assert!((peak / 10.0 - 1.0).abs() < 0.01, "{peak}");
    }
}

/// One has steps that outrun the GPU's memory, one does not wait for the GPU, and one reads nothing of its GPU.
#[test]
fn what_a_worker_misreads_is_found_out_and_what_it_does_not_read_is_read_for_it() {
    let unread = ["started", "loaded", "cold_start", "warmup", "usage"];
    let unread = unread.map(|event| format!("{event}/memory/gpu=null")).join(";");
    let all = installation(&[("fast", AT_1_4_TIMES)], &[]);
    let all = with(all, ("early", "1"), &[("synchronises", "false")]);
    let options = [("gpu_allocated_mb", "8000"), ("gpu_loaded_mb", "7000"), ("say", unread.as_str())];
    let all = with(all, ("unread", "1"), &options);
    let machine = Machine::new(all, &Script::default());
    let ran = machine.compare("fast,early,unread", "--rounds 2");
    let report = machine.report();
    let flags = |name: &str| {
        let flags = array(&report["sanity"]).iter().filter(|flag| flag["framework"] == name);
        flags.map(|flag| flag["finding"].as_str().unwrap()).collect::<Vec<_>>()
    };
    let [finding] = flags("fast")[..] else { panic!("{}{}", ran.stdout, ran.stderr) };
    assert!(finding.contains("cuda:0 was measured to read 2000.0 GB/s"), "{finding}");
    // Its work seems to take no time at all.
    let reasons = row(&report, "early")["reasons"].to_string();
    assert!(!flags("early").is_empty() || reasons.contains("impossible"), "{reasons}");
    assert_eq!(row(&report, "unread")["memory"]["gpu"], 10e9, "{}{}", ran.stdout, ran.stderr);
    let told = of_gpu(&report);
    assert!(told.contains("unread 2000 context + 7000 weights"), "{told}");
}

#[test]
fn what_disturbs_a_gpu_is_complained_of() {
    let busy =
        Device { processes: vec![Process { pid: 1, bytes: None }], throttle: 0x40, ..Device::default() };
    let machine = Machine::new(installation(&[("a", "1")], &[]), &Script::one(busy));
    machine.compare("a", "--rounds 2");
    let complaints = machine.report()["machine"]["complaints"].to_string();
    assert!(complaints.contains("another process computed on the GPU"), "{complaints}");
    assert!(complaints.contains("the GPU was slowed down by heat"), "{complaints}");
}

#[test]
fn what_a_gpu_does_not_tell_is_said_with_its_reason() {
    let silent =
        Device::default().failing("processes", "no_permission").failing("energy_mj", "not_supported");
    let script = Script::one(Device { mig: Some(true), throttle: 0x4, ..silent });
    let machine = Machine::new(installation(&[("a", "1")], &[]), &script);
    machine.compare("a", "--rounds 2").exits(0);
    let report = machine.report();
    assert_eq!(row(&report, "a")["memory"]["gpu"], Value::Null);
    assert_snapshot!(of_gpu(&report), @r"
    share of cuda:0's limit, decode: a 1 % of 2000 GB/s
    share of cuda:0's limit, prefill: a 17 % of 2000 GB/s
    cuda:0 in measured requests: a 1980 of 1980 MHz, 35 °C at most, slowed down by its power limit
    cuda:0: memory bandwidth 2000 GB/s (range 2000–2000), f16 arithmetic 100000 GFLOP/s (range 100000–100000)
    peak memory on cuda:0 is not available
    the GPU is divided (MIG): its clocks, its energy and its heat are those of all parts
    the GPU's energy is not available: this GPU does not report it
    the list of the GPU's processes is not available: this user may not ask NVIDIA's driver
    ");
}

#[test]
fn without_a_gpu_each_contender_has_a_sentence_and_auto_takes_the_cpu() {
    let none = Script { devices: Vec::new(), ..Script::default() };
    let machine = Machine::new(installation(&[("a", "1"), ("b", "1")], &[]), &none);
    let ran = machine.compare("a,b", "").exits(1);
    let sentence = "no device cuda:0 was found: NVIDIA's driver sees no GPU";
    assert_eq!(ran.stderr.trim_end(), format!("error: a: {sentence}; b: {sentence}"));
    let ran = machine.run("--frameworks a --device auto --rounds 2").exits(0);
    assert!(ran.stderr.contains("NVIDIA's driver sees no GPU"), "{}", ran.stderr);
    assert_eq!(machine.report()["plan"]["device"], "cpu");
}

#[test]
fn auto_takes_a_gpu_that_every_worker_can_use() {
    let machine = Machine::new(installation(&[("a", "1")], &[]).timed("of_cpu", &[]), &Script::default());
    for (frameworks, device) in [("a,of_cpu", "cpu"), ("a", "cuda:0")] {
        let ran = machine.run(&format!("--frameworks {frameworks} --device auto --rounds 1"));
        assert_eq!(machine.report()["plan"]["device"], device, "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("of_cpu's worker"), device == "cpu", "{}", ran.stderr);
        std::fs::remove_dir_all(machine.installation.results()).unwrap();
    }
}

#[test]
fn several_gpus_share_the_weights_of_each_contender() {
    let two = Script { devices: vec![Device::default(), Device::default()], ..Script::default() };
    let machine = Machine::new(installation(&[("a", "1")], &[]), &two);
    for (device, said) in [
        // No engine here divides its weights; references do.
        ("cuda:0,cuda:1", "not divided over devices (2 were asked for)"),
        ("cuda:0,cuda:2", "2 GPUs, counted from 0, and no cuda:2"),
        ("cuda:1,cuda:1", "the same GPU twice"),
        ("cuda:0 --tensor-parallel 2", "--device cuda:0 names 1"),
        ("cuda:0,cpu", "auto, cpu or cuda[:N]"),
    ] {
        let ran = machine.run(&format!("--frameworks a --rounds 2 --device {device}"));
        let told = format!("{}{}", ran.stdout, ran.stderr);
        assert!(ran.code != Some(0) && told.contains(said), "{device}: {told}");
    }
}

#[test]
fn two_comparisons_at_a_time_do_not_share_a_machine_s_gpus() {
    let machine = Machine::idle(&[("a", "1")]);
    let cache = machine.installation.path("cache/photofinish");
    std::fs::create_dir_all(&cache).unwrap();
    let other = std::fs::File::create(cache.join("gpu.lock")).unwrap();
    other.lock().unwrap();
    machine.compare("a", "--rounds 1").refused(&["another comparison", "GPU"]);
    machine.compare("a", "--rounds 1 --allow-unfair").exits(0);
    other.unlock().unwrap();
    machine.compare("a", "--rounds 1").exits(0);
}
