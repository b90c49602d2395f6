fn main() -> std::process::ExitCode {
    worker::main::<engine_ort::Ort>()
}
