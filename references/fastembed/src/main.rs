fn main() -> std::process::ExitCode {
    worker::main::<reference_fastembed::Fastembed>()
}
