fn main() -> std::process::ExitCode {
    driver::main()
}
