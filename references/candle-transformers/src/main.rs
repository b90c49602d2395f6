fn main() -> std::process::ExitCode {
    worker::main::<reference_candle_transformers::CandleTransformers>()
}
