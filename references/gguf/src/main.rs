//! `reference-gguf BUNDLE PRECISION DIRECTORY`: prints the path of the derived file, written if it is not there.

use std::path::Path;
use std::process::ExitCode;

use bundle::Bundle;
use reference_gguf::FourBits;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, precision, directory] = arguments.as_slice() else {
        eprintln!("usage: reference-gguf BUNDLE PRECISION DIRECTORY");
        return ExitCode::from(2);
    };
    let derived = precision.parse().map_err(reference_gguf::Error::Unsupported).and_then(|precision| {
        let bundle = Bundle::open(bundle)?;
        // llama.cpp repacks Q4_0.
        reference_gguf::derive(&bundle, precision, FourBits::Q4_0, Path::new(directory))
    });
    match derived {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
