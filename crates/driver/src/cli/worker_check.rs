//! The flags of `photofinish worker-check`.

use bundle::Precision;
use clap::Args;
use plan::Request;

use super::HereArgs;
use super::values::{parse_device, parse_timeout, precisions};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct WorkerCheckArgs {
    /// The worker: the path of a program in any language, or a name from configs/engines
    #[arg(value_name = "PATH|NAME")]
    pub(crate) worker: String,
    /// The model that it works on, as for a comparison
    #[arg(short, long, value_name = "MODEL", default_value = "synthetic:llama-tiny")]
    pub(crate) model: String,
    /// The precision that it is asked for
    #[arg(long, value_parser = precisions(), default_value = "f32")]
    pub(crate) precision: Precision,
    /// auto, cpu or cuda[:N]; auto is the CPU
    #[arg(long, value_parser = parse_device, default_value = "cpu")]
    pub(crate) device: String,
    /// Threads that it may compute with [default: all cores this process may use]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Longest wait for one line
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_timeout)]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) here: HereArgs,
}

const EXIT_CODES: &str =
    "Exit code: 0 every phase holds; 1 one does not; 2 bad usage (docs/how-to/add-an-engine.md)";

impl WorkerCheckArgs {
    /// The settings that a worker of configs/engines is started with.
    pub(crate) fn request(&self) -> Request {
        Request {
            models: vec![self.model.clone()],
            precisions: vec![self.precision],
            device: self.device.clone(),
            threads: self.threads.into_iter().collect(),
            timeout_s: self.timeout,
            ..Request::default()
        }
    }
}
