fn main() -> std::process::ExitCode {
    if let Some(gpus) = std::env::var_os(gpu::LIBRARY_VARIABLE) {
        gpu::simulated::simulate(gpus.into());
    }
    worker::main_through::<engine_mock::Mock>(engine_mock::through)
}
