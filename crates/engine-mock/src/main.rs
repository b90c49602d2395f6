fn main() -> std::process::ExitCode {
    worker::main_through::<engine_mock::Mock>(engine_mock::through)
}
