fn main() -> std::process::ExitCode {
    if let Some(gpus) = gpu::simulated::named() {
        gpu::simulated::simulate(gpus);
    }
    worker::main_through::<engine_mock::Mock>(engine_mock::through)
}
