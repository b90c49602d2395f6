fn main() -> std::process::ExitCode {
    worker::main::<engine_hybrid::Hybrid>()
}
