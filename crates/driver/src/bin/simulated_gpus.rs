//! `photofinish` on a machine whose GPUs are simulated, for `tests/cli/gpu.rs`: `PHOTOFINISH_NVML` names their file.

fn main() -> std::process::ExitCode {
    if let Some(gpus) = gpu::simulated::named() {
        gpu::simulated::simulate(gpus);
    }
    driver::main()
}
