//! The graph that engine-ort was measured with.

use std::fmt::Write;

use bundle::{Precision, hexadecimal};
use onnx::fused::{self, audio, encoder};
use onnx::{Attention, Products, Storage};
use sha2::{Digest, Sha256};

const PRECISIONS: [Precision; 5] =
    [Precision::F32, Precision::F16, Precision::Int8, Precision::Int4, Precision::Nf4];

fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

fn products(precision: Precision) -> Products {
    Products { precision, dequantised: false, converted: false, folds_constants: true }
}

/// A changed graph is another engine: earlier results no longer apply to it. `UPDATE_GRAPHS=1` accepts the
/// change.
#[test]
fn the_fused_graph_is_byte_for_byte_the_one_that_was_measured() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = String::new();
    for model in conformance::tiny().chain(conformance::each(conformance::hearing_models())) {
        let (bundle, name) = (&model.bundle, model.name());
        let config = bundle.config();
        // Bundles of models that hear have no nf4.
        for precision in PRECISIONS.into_iter().filter(|one| config.audio.is_none() || *one != Precision::Nf4)
        {
            let weights = bundle.weights(precision).expect("weights");
            let plan = (Attention::plan(config), products(precision));
            let storage = || Storage::File(precision.file_name());
            if let Some(written) = audio::build(config, plan.1, &weights, storage()).expect("writes") {
                writeln!(found, "{name} audio {precision} {}", sha256(&written.model)).expect("written");
            }
            let written = fused::build(config, plan, &weights, storage(), true);
            let hash = sha256(&written.expect("writes").model);
            writeln!(found, "{name} {precision} {hash}").expect("written");
        }
    }
    let encoders = std::fs::read_dir(conformance::fixtures().with_file_name("encoders")).expect("readable");
    let mut encoders: Vec<_> = encoders.map(|entry| entry.expect("readable").path()).collect();
    encoders.sort();
    for directory in encoders {
        let source = directory.file_name().expect("a name").display();
        let folder = tempfile::tempdir().expect("a temporary directory");
        let bundle = conformance::bundle_at(&directory, folder.path(), &[Precision::F32]);
        let (config, weights) = (bundle.config(), bundle.weights(Precision::F32).expect("weights"));
        let plan = (Attention::plan(config), products(Precision::F32));
        let storage = Storage::File(Precision::F32.file_name());
        let written = encoder::build(config, plan, &weights, storage, (false, false));
        let hash = sha256(&written.expect("writes").model);
        writeln!(found, "{source} {} {hash}", Precision::F32).expect("written");
    }
    let golden = here.join("tests/fused.sha256");
    if std::env::var_os("UPDATE_GRAPHS").is_some() {
        std::fs::write(&golden, &found).expect("writable");
    }
    assert_eq!(found, std::fs::read_to_string(&golden).expect("readable"));
}
