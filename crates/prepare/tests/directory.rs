//! A Hugging Face directory becomes a bundle.

use bundle::{Bundle, Precision};
use prepare::{Progress, Request, Source, prepare};

#[test]
fn every_tiny_model_becomes_a_bundle() {
    let bundles = tempfile::tempdir().unwrap();
    for model in engine::conformance::tiny_models() {
        let request = Request {
            source: Source::Directory(model),
            name: None,
            precisions: vec![Precision::F32],
            bundles: bundles.path().to_path_buf(),
            progress: Progress::Silent,
        };
        let bundle = Bundle::open(prepare(&request).unwrap()).unwrap();
        bundle.weights(Precision::F32).unwrap();
    }
}
