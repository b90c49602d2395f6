//! The other form of attention: head sizes that GroupQueryAttention does not rotate or does not accept
//! unpadded.

use std::path::Path;

use conformance::{
    Model, TOLERANCE, at, bundle, check_hidden_states, check_model, fixtures, logits_in_pieces,
    max_abs_difference, tiny,
};
use onnx::{Attention, Rotation};
use worker::engine::{
    Bundle, Decode, HiddenStates, InEffect, InferenceEngine, Precision, Result, Runtime, Settings, Want,
};

use crate::Ort;
use crate::runtime::{fill, find, keeps_free_rows, library};

mod encoders;
mod half;
mod hearing;
mod quantised;

fn settings() -> Settings {
    Settings { hidden_states: true, ..at(Precision::F32) }
}

/// The engine with separate rotation and padded heads, for any head size.
struct Padded(Ort);

impl InferenceEngine for Padded {
    const FRAMEWORK: &'static str = Ort::FRAMEWORK;

    fn runtime() -> Result<Runtime> {
        Ort::runtime()
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Padded> {
        let usual = Attention::plan(bundle.config());
        let rotation = match usual.rotation {
            Rotation::Fused => Rotation::Separate,
            other => other,
        };
        let attention = Attention { rotation, cached_head_dim: usual.cached_head_dim + 8, ..usual };
        Ort::load_with(bundle, attention, settings).map(Padded)
    }

    fn in_effect(&self) -> InEffect {
        self.0.in_effect()
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        Ok(self)
    }
}

impl Decode for Padded {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        self.0.begin(batch, capacity)
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        self.0.append(tokens, want)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        self.0.hidden_states()
    }
}

#[test]
fn padded_heads_rotated_apart_match_the_reference() {
    for model in tiny() {
        check_model::<Padded>(&model, &settings());
    }
}

/// A tiny model with its projections divided into more and smaller heads.
fn with_head_dim(head_dim: usize, directory: &Path) -> Bundle {
    let model = fixtures().join("llama-gqa-tied");
    let text = std::fs::read_to_string(model.join("config.json")).expect("readable");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let smaller = 16 / head_dim;
    config["head_dim"] = head_dim.into();
    config["num_attention_heads"] = (4 * smaller).into();
    config["num_key_value_heads"] = (2 * smaller).into();
    let source = directory.join(format!("heads-of-{head_dim}"));
    std::fs::create_dir(&source).expect("a directory");
    std::fs::write(source.join("config.json"), config.to_string()).expect("writable");
    std::fs::copy(model.join("model.safetensors"), source.join("model.safetensors")).expect("a copy");
    bundle(&source, directory)
}

#[test]
fn small_heads_give_the_same_in_pieces_as_at_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens: Vec<u32> = (0..24).map(|i| i * 37 % 320).collect();
    for (head_dim, cached) in [(8, 8), (4, 8)] {
        let bundle = with_head_dim(head_dim, directory.path());
        assert_eq!(Attention::plan(bundle.config()).cached_head_dim, cached);
        let mut engine = Ort::load(&bundle, &settings()).expect("loads");
        let whole = logits_in_pieces(&mut engine, &[&tokens], tokens.len());
        engine.begin(1, tokens.len()).expect("begins");
        let mut pieces = Vec::new();
        for piece in [&tokens[..1], &tokens[1..9], &tokens[9..]] {
            pieces.extend_from_slice(engine.append(piece, Want::All).expect("appends"));
        }
        let difference = max_abs_difference(&whole, &pieces);
        assert!(difference <= TOLERANCE, "heads of {head_dim}: pieces differ by {difference}");
    }
}

#[test]
fn a_cache_that_is_copied_is_told_from_one_that_is_shared() {
    let library = library().expect("a library");
    for model in tiny() {
        let config = model.bundle.config();
        for one_tensor in [true, false] {
            let kept = keeps_free_rows(library, config, Attention::plan(config), one_tensor).expect("runs");
            assert_eq!(kept, one_tensor, "{}", model.name());
        }
    }
}

#[test]
fn what_cannot_be_loaded_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text_file = directory.path().join("library.so");
    std::fs::write(&text_file, "no library").expect("writable");
    let message = |named: Option<&Path>| {
        let error = find(named.map(Path::to_path_buf)).expect_err("nothing to load");
        error.to_string()
    };
    assert_eq!(
        message(None),
        "ORT_DYLIB_PATH is not set; run `photofinish setup` (in a checkout: `cargo xtask setup`)"
    );
    assert_eq!(message(Some(Path::new(""))), message(None));
    let absent = message(Some(&directory.path().join("absent.so")));
    assert!(absent.contains("absent.so, which is no file; run `photofinish setup`"), "{absent}");
    let broken = message(Some(&text_file));
    assert!(broken.contains("library.so cannot be loaded: "), "{broken}");
    assert!(broken.contains("run `photofinish setup`"), "{broken}");
}

#[test]
fn a_batch_fed_token_by_token_has_the_hidden_states_of_the_reference() {
    let Model { bundle, reference, directory: _directory, .. } = Model::tiny("llama-gqa-tied");
    let (batch, positions, width) = (reference.batch, reference.positions, bundle.config().hidden_size);
    let columns = |range: std::ops::Range<usize>| -> Vec<u32> {
        reference.rows().into_iter().flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    let mut engine = Ort::load(&bundle, &settings()).expect("loads");
    engine.begin(batch, positions).expect("begins");
    engine.append(&columns(0..5), Want::Last).expect("appends");
    let last = engine.append(&columns(5..positions), Want::Last).expect("appends");
    assert_eq!(last.len(), batch * bundle.config().vocab_size);
    let of_the_last = |layer: &Vec<f32>| -> Vec<f32> {
        layer.chunks_exact(positions * width).flat_map(|row| row[5 * width..].to_vec()).collect()
    };
    let theirs: Vec<_> = reference.hidden.iter().map(of_the_last).collect();
    check_hidden_states(&engine.hidden_states().expect("asked for at load"), &theirs, TOLERANCE);
}

/// Logits of a batch of equal prompts, then of some steps, over a cache that begins with these bytes.
fn logits_over(engine: &mut Ort, (batch, prompt): (usize, usize), byte: u8) -> Vec<f32> {
    const STEPS: usize = 4;
    let tokens = |positions: std::ops::Range<usize>| -> Vec<u32> {
        let one: Vec<u32> = positions.map(|position| (position * 37 % 311) as u32).collect();
        one.repeat(batch)
    };
    // Another capacity, so that the next cache is a new one.
    engine.begin(1, 1).expect("begins");
    engine.begin(batch, prompt + STEPS).expect("begins");
    let sequences = engine.body.decoder().expect("a decoder").sequences.as_mut().expect("begun");
    for tensor in sequences.cache_mut() {
        fill(tensor, byte).expect("fills");
    }
    let mut logits = engine.append(&tokens(0..prompt), Want::All).expect("appends").to_vec();
    for step in prompt..prompt + STEPS {
        logits.extend_from_slice(engine.append(&tokens(step..step + 1), Want::Last).expect("appends"));
    }
    logits
}

/// Numbers of logits that are not finite over a cache of zeros and over one of NaN, of so many, and how far they are apart.
fn over_unfilled_positions(engine: &mut Ort, shape: (usize, usize)) -> ([usize; 2], usize, f32) {
    // A byte of 255 makes every number NaN.
    let [zeros, nans] = [0, 255].map(|byte| logits_over(engine, shape, byte));
    let not_finite = |logits: &[f32]| logits.iter().filter(|logit| !logit.is_finite()).count();
    ([not_finite(&zeros), not_finite(&nans)], nans.len(), max_abs_difference(&zeros, &nans))
}

#[test]
fn positions_of_the_cache_that_are_not_filled_change_no_logit() {
    for model in tiny() {
        let mut engine = Ort::load(&model.bundle, &at(Precision::F32)).expect("loads");
        for batch in [1, 3] {
            let (not_finite, _, difference) = over_unfilled_positions(&mut engine, (batch, 13));
            assert_eq!((not_finite, difference), ([0, 0], 0.0), "{batch} sequences of {}", model.name());
        }
    }
}

/// ONNX Runtime's kernels read them there, so that the cache has to begin as zeros. Prints what NaN does:
/// tools/gpu/cache.sh lets each kind of attention run.
#[test]
#[ignore = "needs a GPU"]
fn a_cache_of_zeros_gives_finite_logits_on_a_gpu() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = conformance::synthetic("llama-1b", directory.path(), &[Precision::F16]);
    let settings = Settings { device: "cuda:0".into(), ..at(Precision::F16) };
    let mut engine = Ort::load(&bundle, &settings).expect("loads");
    for (batch, prompt) in [(1, 85), (1, 1024), (16, 85), (16, 70), (32, 200)] {
        let ([zeros, nans], all, _) = over_unfilled_positions(&mut engine, (batch, prompt));
        println!("{batch} x {prompt}: not finite over zeros {zeros}, over NaN {nans} of {all}");
        assert_eq!(zeros, 0, "{batch} sequences of {prompt} tokens");
    }
}
