//! A rehearsal without a GPU: the plan as it is, with mocks instead of its frameworks and a fake NVML
//! library. It tests that every step of the plan can be run, resumed and packed; its figures mean nothing.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use setup::tooling::Reporter;

use super::plan::{Machine, Plan};
use crate::workspace::{PHOTOFINISH, Workspace};

/// The abilities of the mocks: a step of a simulated GPU of 3,000 GB/s takes 0.5 ms.
const OPTIONS: &str = "[options]
token_ms = \"0.5\"
prefill_token_ms = \"0.01\"
load_ms = \"100\"
kv_cache = \"true\"
gpu_bandwidth = \"3000\"
gpu_gflops = \"500000\"
gpu_memory_mb = \"9000\"
gpu_allocated_mb = \"8000\"
gpu_loaded_mb = \"7000\"
";

/// The simulated machine. Its files are in `scratch`.
pub(super) fn machine(
    workspace: &Workspace,
    plan: &Plan,
    scratch: &Path,
    reporter: Reporter,
) -> Result<Machine> {
    crate::cargo::build(workspace, &["driver", "prepare", "engine-mock", "nvml-fake"], None, reporter)?;
    let lacks = || format!("cannot write to {}", scratch.display());
    let library = nvml_fake::install(scratch, &nvml_fake::Script::default()).with_context(lacks)?;
    let configs = scratch.join("configs");
    fs::create_dir_all(configs.join("engines")).with_context(lacks)?;
    for name in plan.frameworks() {
        let text = format!(
            "framework = \"mock\"\nworker = \"engine-mock\"\nsummary = \"{name}, played\"\n{OPTIONS}"
        );
        fs::write(configs.join("engines").join(format!("{name}.toml")), text).with_context(lacks)?;
    }
    for directory in ["models", "suites", "texts"] {
        copy(&workspace.configs().join(directory), &configs.join(directory)).with_context(lacks)?;
    }
    let options = [("--configs", configs.as_path()), ("--workers", &workspace.binaries)];
    let arguments = options.into_iter().flat_map(|(name, path)| [name.into(), path.as_os_str().to_owned()]);
    let mut variables = vec![("PHOTOFINISH_PROVISIONED".to_owned(), "1".into())];
    variables.push(("PHOTOFINISH_NVML".to_owned(), library.into_os_string()));
    Ok(Machine { program: workspace.binary(PHOTOFINISH), arguments: arguments.collect(), variables })
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
