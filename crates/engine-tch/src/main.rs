fn main() -> std::process::ExitCode {
    worker::main::<engine_tch::Tch>()
}
