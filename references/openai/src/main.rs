fn main() -> std::process::ExitCode {
    worker::main::<reference_openai::Server>()
}
