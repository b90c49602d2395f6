//! `cargo xtask compare`: builds everything that the comparison needs, then replaces this process by the
//! driver.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use configs::DEFAULT_MODEL;
use setup::Target;
use setup::tooling::process::command;
use setup::tooling::{BadInput, Reporter};

use crate::build::{self, Engines, PROGRAMS, Wanted};
use crate::cargo::HUB;
use crate::cuda;
use crate::programs::replace_this_process;
use crate::workspace::{PHOTOFINISH, Workspace};

/// The driver's arguments that decide what must be built before it starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) frameworks: Vec<String>,
    pub(crate) model: Option<String>,
    device: Option<String>,
    pub(crate) quiet: bool,
    /// Whether help or a plan is requested: nothing is measured.
    is_idle: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let mut needs = Needs::read(args)?;
    needs.settle(&workspace.layers());
    let reporter = Reporter::new(needs.quiet);
    if needs.is_idle || needs.is_refused() {
        crate::cargo::build(workspace, &["driver"], None, reporter)?;
    } else {
        provide(workspace, &needs, reporter)?;
    }
    let mut driver = command(workspace.binary(PHOTOFINISH));
    // The driver has nothing left to provide.
    driver.arg("compare").args(args).env("PHOTOFINISH_PROVISIONED", "1");
    replace_this_process(driver)
}

fn provide(workspace: &Workspace, needs: &Needs, reporter: Reporter) -> Result<()> {
    let engines = Engines::read(workspace)?;
    let model = needs.model.as_deref().unwrap_or(DEFAULT_MODEL);
    let target = needs.target();
    let wanted = Wanted {
        programs: PROGRAMS.into_iter().chain(build::is_of_hub(workspace, model)?.then_some(HUB)).collect(),
        engines: engines.select(&needs.frameworks)?,
        pieces: build::pieces_of_model(workspace, model)?,
        target,
    };
    build::together(workspace, &wanted, reporter)?;
    match target {
        Target::Cuda => cuda::build(workspace, &needs.frameworks, reporter),
        Target::Cpu => Ok(()),
    }
}

impl Needs {
    /// The GPUs that are requested, or may be used.
    fn gpus(&self) -> Vec<usize> {
        match self.device.as_deref() {
            Some("auto") => vec![0],
            device => protocol::gpus(device.unwrap_or_default()),
        }
    }

    /// The comparison's target, as far as NVIDIA's driver is known.
    fn target(&self) -> Target {
        let gpus = self.gpus();
        let are_there = !gpus.is_empty() && gpu::objection(&gpus).is_none();
        if are_there { Target::Cuda } else { Target::Cpu }
    }

    /// Whether the driver will refuse the comparison for lack of such a GPU, so that nothing needs to be
    /// provided.
    fn is_refused(&self) -> bool {
        self.device.as_deref() != Some("auto") && gpu::objection(&self.gpus()).is_some()
    }

    /// Names the frameworks that run an ONNX file where none is named.
    pub(crate) fn settle(&mut self, configs: &configs::Layers) {
        let is_onnx = self.model.as_deref().is_some_and(|model| configs::runs_onnx(configs, model));
        if self.frameworks.is_empty() && is_onnx {
            self.frameworks = configs::OF_ONNX.map(str::to_owned).to_vec();
        }
    }

    /// The values of one flag, in their order.
    pub(crate) fn values(args: &[OsString], flag: &str) -> Result<Vec<String>> {
        let mut values = Vec::new();
        let mut args = args.iter().map(|arg| arg.to_string_lossy());
        while let Some(arg) = args.next() {
            match arg.split_once('=') {
                Some((name, value)) if name == flag => values.push(value.to_owned()),
                None if arg == flag => {
                    let value = args.next().ok_or_else(|| BadInput(format!("{flag} needs a value")))?;
                    values.push(value.into_owned());
                }
                _ => {}
            }
        }
        Ok(values)
    }

    pub(crate) fn read(args: &[OsString]) -> Result<Self> {
        let has = |flags: &[&str]| args.iter().any(|arg| flags.iter().any(|flag| arg == flag));
        let model = Self::values(args, "--model")?.pop();
        let named = Self::values(args, "--frameworks")?;
        let frameworks: Vec<String> =
            named.iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect();
        Ok(Self {
            frameworks,
            model,
            device: Self::values(args, "--device")?.pop(),
            quiet: has(&["--quiet", "-q"]),
            is_idle: has(&["--help", "-h", "--dry-run"]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(args: &[&str]) -> Needs {
        Needs::read(&args.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn only_what_decides_the_set_up_is_read() {
        assert_eq!(needs(&["--rounds", "3", "--prompt", "x"]), Needs::default());
        let found = needs(&["--frameworks", "candle,tch", "--model=a.gguf", "--quiet"]);
        assert_eq!(found.frameworks, ["candle", "tch"]);
        let mut graph = needs(&["--model", "a.onnx"]);
        graph.settle(&configs::Layers::single("."));
        assert_eq!(graph.frameworks, configs::OF_ONNX);
        assert_eq!(found.model.as_deref(), Some("a.gguf"));
        assert!(found.quiet && !found.is_idle);
        assert_eq!(needs(&["--frameworks=candle", "--frameworks", "ort"]).frameworks, ["candle", "ort"]);
        for flag in ["--help", "--dry-run"] {
            assert!(needs(&["--frameworks", "tch", flag]).is_idle);
        }
        assert_eq!(needs(&["--device", "cuda:1"]).device.as_deref(), Some("cuda:1"));
        assert_eq!(needs(&["--device=auto"]).gpus(), [0]);
        assert!(needs(&["--device=cpu"]).gpus().is_empty() && !needs(&["--device=cpu"]).is_refused());
    }

    #[test]
    fn a_flag_without_its_value_is_bad_input() {
        let error = Needs::read(&["--frameworks".into()]).unwrap_err();
        assert!(setup::tooling::is_bad_input(&error));
    }
}
