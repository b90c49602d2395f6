//! `photofinish` on a machine whose GPUs are simulated, for `tests/cli/gpu.rs`: `PHOTOFINISH_NVML` names their file.

fn main() -> std::process::ExitCode {
    if let Some(gpus) = std::env::var_os(gpu::LIBRARY_VARIABLE) {
        gpu::simulated::simulate(gpus.into());
    }
    driver::main()
}
