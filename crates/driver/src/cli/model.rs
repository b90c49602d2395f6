//! Flags that say which model runs, and on what: all commands that run one share them.

use bundle::Precision;
use clap::Args;
use plan::Request;

use super::help::{COMPARE, EXPERT};
use super::values::{parse_device, parse_timeout, precisions, set, set_list};

/// Settings that every command shares.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ModelArgs {
    /// A name from configs/models, a directory, a .gguf or .onnx file, hf:owner/name, or synthetic:NAME
    /// [default: smollm2-135m]
    #[arg(short, long, value_name = "MODEL,…", value_delimiter = ',', help_heading = COMPARE)]
    model: Vec<String>,
    /// [default: f32 on a CPU, f16 on CUDA]
    #[arg(long, value_parser = precisions(), value_delimiter = ',', help_heading = COMPARE)]
    precision: Vec<Precision>,
    /// auto, cpu or cuda[:N] (or gpu); auto: the first GPU, if every selected framework supports it [default: cpu]
    #[arg(long, value_parser = parse_device, help_heading = COMPARE)]
    device: Option<String>,
    /// Threads that may compute at once [default: all cores this process may use]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = COMPARE)]
    threads: Vec<u32>,
    /// Turn off graph optimisation and JIT for all frameworks
    #[arg(long, help_heading = EXPERT, hide_short_help = true)]
    no_jit: bool,
    /// Time limit of one worker process: 90s, 10m [default: 600s]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, help_heading = EXPERT, hide_short_help = true)]
    timeout: Option<u64>,
}

impl ModelArgs {
    /// A request for commands that are not comparisons.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::default();
        self.apply_to(&mut request);
        request
    }

    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.models, &self.model);
        if !self.precision.is_empty() {
            (request.precisions, request.quantize) = (self.precision.clone(), Vec::new());
        }
        set(&mut request.device, self.device.as_ref());
        set_list(&mut request.threads, &self.threads);
        request.jit &= !self.no_jit;
        set(&mut request.timeout_s, self.timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_to_name_a_precision_takes_the_place_of_another() {
        let mut request = Request { quantize: vec![Precision::Int8], ..Request::default() };
        ModelArgs { precision: vec![Precision::F32], ..ModelArgs::default() }.apply_to(&mut request);
        assert_eq!((request.precisions, request.quantize), (vec![Precision::F32], Vec::new()));
    }
}
