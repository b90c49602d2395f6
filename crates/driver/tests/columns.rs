//! The references in Python that install from the registry alone: each against the fixtures of an independent
//! implementation, and its worker against the protocol. One that is not set up is reported as ignored; `cargo xtask test`
//! sets them up before. And the worker in Go of `examples/worker-go` against the protocol, which is reported as ignored
//! where Go is not installed.
#![expect(clippy::disallowed_methods, reason = "the conformance suite is a program of its own")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bundle::{Bundle, Precision};
use comparison::plan;
use driver::measure::worker::Worker;
use driver::worker_check::{Held, Subject, check};
use libtest_mimic::{Arguments, Failed, Trial};
use setup::tooling::Reporter;
use setup::{Piece, Provision, Reference};

/// A fixture with most features of a decoder, for variants of an adapter.
const ONE: &[&str] = &["llama-gqa-tied"];
/// Every fixture of `crates/conformance/fixtures/tiny`.
const EACH: &[&str] = &["llama-gqa-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3-qknorm", "gpt2"];
/// Every fixture of `crates/conformance/fixtures/architectures`.
const ARCHITECTURES: &[&str] =
    &["gemma2", "gemma3", "granite", "mistral-window", "olmo2", "phi3", "phi3-longrope", "smollm3"];
/// Families of other blocks, which jax does not compute.
const FAMILIES: &[&str] = &[
    "cohere",
    "glm",
    "glm4",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt-oss",
    "mixtral",
    "phi2",
    "qwen2-moe",
    "qwen3-moe",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
];
/// Two of them that cover the others' features: windows, norms after layers and of heads, scaled positions.
const TWO: &[&str] = &["gemma3", "phi3-longrope"];
/// A fixture that attends both ways: `crates/conformance/fixtures/diffusion`.
const DIFFUSION: &[&str] = &["dream"];
/// Every fixture of `crates/conformance/fixtures/encoders`.
const ENCODERS: &[&str] = &[
    "bert",
    "bert-rank",
    "bert-tokens",
    "distilbert",
    "distilbert-rank",
    "modernbert",
    "modernbert-rank",
    "modernbert-tokens",
    "mpnet",
    "mpnet-tokens",
    "nomic-bert",
    "nomic-bert-rank",
    "qwen3-embed",
    "qwen3-rank",
    "roberta",
    "roberta-tokens",
    "xlm-roberta-rank",
];

/// Every fixture of `crates/conformance/fixtures/speech`.
const SPEECH: &[&str] = &["whisper", "whisper-alike", "whisper-odd"];

/// Name of the test, reference, arguments of `conformance.py`, and the models.
type Case = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

const CASES: &[Case] = &[
    ("openvino", "openvino", &["--threads", "2"], EACH),
    ("jax", "jax", &["--threads", "2"], EACH),
    ("jax_of_two_architectures", "jax", &["--threads", "2"], TWO),
    ("jax_on_two_devices", "jax", &["--threads", "2", "--shards", "2"], ONE),
    // It has fewer heads than devices, so that each device computes all of them.
    ("jax_on_four_devices", "jax", &["--threads", "2", "--shards", "4"], &["qwen2-bias"]),
    ("jax_without_jit", "jax", &["--threads", "2", "--no-jit"], ONE),
    ("openvino_denoising", "openvino", &["--threads", "2"], DIFFUSION),
    // The program that OpenVINO compiles of an encoder returns vectors alone.
    ("openvino_encoding", "openvino", &["--threads", "2", "--no-hidden-states"], ENCODERS),
    ("jax_denoising", "jax", &["--threads", "2"], DIFFUSION),
    ("jax_denoising_on_two_devices", "jax", &["--threads", "2", "--shards", "2"], DIFFUSION),
    ("jax_denoising_without_jit", "jax", &["--threads", "2", "--no-jit"], DIFFUSION),
    (
        "transformers_with_eager_attention",
        "transformers",
        &["--threads", "2", "--option", "attention=eager"],
        ONE,
    ),
    // Its own LongRoPE decides for every step, where a bundle's decides once for all of the room.
    (
        "transformers",
        "transformers",
        &["--threads", "2"],
        &["gpt2", "gemma2", "gemma3", "granite", "mistral-window", "olmo2", "phi3", "smollm3"],
    ),
    ("transformers_of_every_family", "transformers", &["--threads", "2"], FAMILIES),
    (
        "transformers_encoding",
        "transformers",
        &["--threads", "2"],
        &["bert", "modernbert", "nomic-bert-rank", "mpnet-tokens", "qwen3-embed"],
    ),
    (
        "transformers_compiled",
        "transformers",
        &["--threads", "2", "--no-hidden-states", "--option", "compile=true"],
        ONE,
    ),
    ("transformers_denoising", "transformers", &["--threads", "2"], DIFFUSION),
    ("transformers_hearing", "transformers", &["--threads", "2"], SPEECH),
    (
        "transformers_hearing_compiled",
        "transformers",
        &["--threads", "2", "--no-hidden-states", "--option", "compile=true"],
        &["whisper"],
    ),
    (
        "llamacpp",
        "llamacpp",
        &["--threads", "2", "--no-hidden-states"],
        &["llama-gqa-tied", "qwen2-bias", "qwen3-qknorm", "mixtral"],
    ),
    ("whispercpp", "whispercpp", &["--threads", "2", "--precision", "f16"], &["whisper-alike"]),
    // It computes on one thread.
    ("tinygrad", "tinygrad", &["--threads", "1"], EACH),
    // Not in bf16, which needs a newer clang than some systems have.
    ("tinygrad_in_f16", "tinygrad", &["--threads", "1", "--precision", "f16"], &["llama-gqa-tied", "gpt2"]),
    ("tinygrad_on_two_devices", "tinygrad", &["--threads", "1", "--shards", "2"], ONE),
    ("tinygrad_on_four_devices", "tinygrad", &["--threads", "1", "--shards", "4"], &["qwen2-bias"]),
];

/// Tests that take minutes: `cargo xtask test --all` runs them.
const CAMPAIGNS: &[Case] = &[("jax_of_every_architecture", "jax", &["--threads", "2"], ARCHITECTURES)];

/// Time limit of each phase of a worker: it compiles.
const LONG: Duration = Duration::from_secs(300);

/// Names the check of the protocol that this program does alone.
const CHECKED: &str = "PHOTOFINISH_CHECKED";

fn main() {
    if let Ok(name) = std::env::var(CHECKED) {
        let checked = if name == GO { the_example_in_go() } else { holds(&name) };
        if let Err(failed) = checked {
            eprintln!("{}", failed.message().unwrap_or_default());
            std::process::exit(1);
        }
        return;
    }
    let mut trials = Vec::new();
    for case in CASES {
        let is_here = python(case.1).is_some();
        trials
            .push(Trial::test(format!("{}_conforms", case.0), || conforms(case)).with_ignored_flag(!is_here));
    }
    for case in CAMPAIGNS {
        trials.push(Trial::test(format!("{}_conforms", case.0), || conforms(case)).with_ignored_flag(true));
    }
    let openvino = python("openvino").is_some();
    for (name, tests) in [
        ("openvino_keeps_its_rules", "test_openvino.py"),
        ("tokens_are_drawn_as_in_rust", "test_draw.py"),
        ("whispercpp_keeps_its_rules", "test_whispercpp.py"),
    ] {
        trials.push(Trial::test(name, move || keeps_its_rules(tests)).with_ignored_flag(!openvino));
    }
    for reference in ["openvino", "jax", "tinygrad"] {
        let is_here = python(reference).is_some();
        let test = move || alone(reference);
        trials.push(
            Trial::test(format!("{reference}_keeps_to_the_protocol"), test).with_ignored_flag(!is_here),
        );
        if !is_here {
            eprintln!(
                "{reference} is not set up, its tests are ignored: cargo xtask setup --references={reference}"
            );
        }
    }
    let go = Command::new("go").arg("version").output().is_ok_and(|ran| ran.status.success());
    trials.push(Trial::test("the_example_in_go_keeps_to_the_protocol", || alone(GO)).with_ignored_flag(!go));
    if !go {
        eprintln!(
            "`go version` does not run, the test of examples/worker-go is ignored: install Go 1.19 or newer"
        );
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn references() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(cache.join("photofinish/references"))
}

/// The python that set-up installed a reference for.
fn python(reference: &str) -> Option<PathBuf> {
    let references = references()?;
    let told = std::fs::read_to_string(references.join(format!("{reference}.python"))).ok()?;
    Some(references.join(told.trim())).filter(|python| python.is_file())
}

fn fixture(name: &str) -> PathBuf {
    let kind = match name {
        _ if DIFFUSION.contains(&name) => "diffusion",
        _ if ENCODERS.contains(&name) => "encoders",
        _ if SPEECH.contains(&name) => "speech",
        _ if ARCHITECTURES.contains(&name) || FAMILIES.contains(&name) => "architectures",
        _ => "tiny",
    };
    root().join("crates/conformance/fixtures").join(kind).join(name)
}

fn bundle(name: &str) -> Bundle {
    static BUNDLES: OnceLock<tempfile::TempDir> = OnceLock::new();
    let bundles = BUNDLES.get_or_init(|| tempfile::tempdir().unwrap());
    let request = prepare::Request {
        source: prepare::Source::parse(fixture(name).to_str().unwrap()),
        name: None,
        precisions: vec![Precision::F32, Precision::F16],
        bundles: bundles.path().to_owned(),
        progress: prepare::Progress::Silent,
    };
    Bundle::open(prepare::prepare(&request).unwrap()).unwrap()
}

fn conforms(&(_, reference, arguments, models): &Case) -> Result<(), Failed> {
    let descriptions = tempfile::tempdir()?;
    let mut command = Command::new(python(reference).ok_or("it is not set up")?);
    command
        .arg("-B")
        .arg(root().join("references/python/tests/conformance.py"))
        .args(arguments)
        .arg(reference);
    for name in models {
        let bundle = bundle(name);
        let description = descriptions.path().join(format!("{name}.json"));
        std::fs::write(&description, bundle.config().described().to_string())?;
        command.arg(bundle.directory()).arg(description).arg(fixture(name));
    }
    // Files derived for a reference that reads no bundles are there.
    command.env("PHOTOFINISH_REFERENCES", descriptions.path());
    if *reference == Reference::Llamacpp.to_string() {
        let references = references().ok_or("there is no cache directory")?;
        let cache = references.parent().ok_or("it is the root directory")?;
        let provision = Provision::new(&root().join("configs"), cache, Reporter::new(true))?;
        command.env(Piece::Llamacpp.variable(), provision.place(Piece::Llamacpp)?);
        std::os::unix::fs::symlink(references.join("bin"), descriptions.path().join("bin"))?;
    }
    let (succeeded, told) = told(&mut command)?;
    if succeeded { Ok(()) } else { Err(told.into()) }
}

/// Tests that need OpenVINO or numpy, and no model.
fn keeps_its_rules(tests: &str) -> Result<(), Failed> {
    let mut program = Command::new(python("openvino").ok_or("it is not set up")?);
    program.args(["-B", "-m", "unittest", "discover", "-p", tests, "-s"]);
    let (succeeded, told) = told(program.arg(root().join("references/python/tests")))?;
    if succeeded && !told.contains("skipped") { Ok(()) } else { Err(told.into()) }
}

/// Whether a program succeeded, and all that it said.
fn told(command: &mut Command) -> Result<(bool, String), Failed> {
    let output = command.output()?;
    let told = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((output.status.success(), told.concat()))
}

const GO: &str = "go";

/// A check of the protocol in a process of its own, which adopts what its worker leaves. This one would also adopt what
/// other tests leave, such as the compilers of `torch.compile`.
fn alone(name: &str) -> Result<(), Failed> {
    let mut program = Command::new(std::env::current_exe()?);
    let (succeeded, told) = told(program.env(CHECKED, name))?;
    if succeeded { Ok(()) } else { Err(told.into()) }
}

fn holds(reference: &str) -> Result<(), Failed> {
    let mut environment = driver::measure::worker::environment(2, plan::HugePages::On);
    let references = references().ok_or("there is no cache directory")?.display().to_string();
    environment.insert("PHOTOFINISH_REFERENCE".into(), reference.into());
    environment.insert("PHOTOFINISH_REFERENCES".into(), references);
    checked(root().join("references/python/worker"), environment).map(drop)
}

/// Builds the example according to its README, in a separate directory.
fn the_example_in_go() -> Result<(), Failed> {
    let example = root().join("examples/worker-go");
    let directory = tempfile::tempdir()?;
    let binary = directory.path().join("worker-go");
    let mut build = Command::new("go");
    // Neither asks git, which may distrust the directory, nor fetches another Go.
    build
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&binary)
        .current_dir(&example)
        .env("GOTOOLCHAIN", "local");
    let (built, said) = told(&mut build)?;
    if !built {
        return Err(said.into());
    }
    let told = checked(binary, driver::measure::worker::environment(2, plan::HugePages::On))?;
    if told.lines().take(4).any(|line| !line.contains(" holds: ")) {
        return Err(format!("the example should do the first four phases:\n{told}").into());
    }
    let lines = std::fs::read_to_string(example.join("main.go"))?.lines().count();
    if lines > 130 { Err(format!("main.go should be short and has {lines} lines").into()) } else { Ok(()) }
}

/// What is said of the phases of a worker that follows the protocol; the problems of another.
fn checked(binary: PathBuf, environment: BTreeMap<String, String>) -> Result<String, Failed> {
    let bundle = bundle("llama-gqa-tied");
    let worker = Worker::new(binary, environment, LONG);
    let subject = Subject {
        worker: &worker,
        reference: None,
        bundle: &bundle,
        precision: Precision::F32,
        device: "cpu",
        threads: 2,
        jit: true,
        options: BTreeMap::new(),
    };
    let mut told = String::new();
    let held = check(&subject, |phase| {
        told += &format!("{phase}\n");
        Ok(())
    });
    if held.is_ok_and(Held::all) { Ok(told) } else { Err(told.into()) }
}
