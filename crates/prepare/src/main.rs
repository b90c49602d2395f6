//! Prepares a model from the command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use bundle::{Bundle, Precision};
use clap::Parser;
use prepare::{PrepareError, Progress, Request, Source, config, prepare};
use protocol::untrusted;
use serde_json::json;

/// Makes a bundle, the one form of a model that every engine reads, and prints where it is.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// A Hugging Face directory, a .gguf file, an .onnx file, hf:owner/name, synthetic:NAME, or a bundle
    source: String,
    /// The precisions that the bundle must hold
    #[arg(
        long,
        value_delimiter = ',',
        required_unless_present = "config",
        value_name = "f32,bf16,f16,int8,int4,nf4,file"
    )]
    precision: Vec<Precision>,
    /// The directory in which all bundles are
    #[arg(long, value_name = "DIR", required_unless_present = "config")]
    bundles: Option<PathBuf>,
    /// Print the model's config.json and make nothing; no weights are read or fetched
    #[arg(long, conflicts_with_all = ["precision", "bundles", "name"])]
    config: bool,
    /// What to call the model [default: after the source]
    #[arg(long)]
    name: Option<String>,
    /// No progress bars, no warnings
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    untrusted::program(prepared)
}

fn prepared() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        // The exit code reports a closed stdout.
        Ok(line) => match writeln!(std::io::stdout(), "{line}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(e) => {
            // The error may quote a model's files.
            protocol::say!("error: {}", untrusted::line(&e.to_string()));
            ExitCode::from(if e.is_bad_input() { 2 } else { 1 })
        }
    }
}

fn run(arguments: Arguments) -> Result<serde_json::Value, PrepareError> {
    let source = Source::parse(&arguments.source);
    let progress = if arguments.quiet { Progress::Silent } else { Progress::Bar };
    let Some(bundles) = arguments.bundles else { return config(&source, progress) };
    let Arguments { name, precision: precisions, .. } = arguments;
    let directory = prepare(&Request { source, name, precisions, bundles, progress })?;
    let bundle = Bundle::open(&directory)?;
    let path = std::path::absolute(&directory).unwrap_or(directory).display().to_string();
    Ok(json!({ "bundle": path, "name": bundle.manifest().name, "precisions": bundle.precisions() }))
}
