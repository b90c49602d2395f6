fn main() -> std::process::ExitCode {
    protocol::untrusted::program(driver::main)
}
