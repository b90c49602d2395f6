//! Prompts of different lengths in one batch.

use std::path::Path;

use engine::{Bundle, Decode, EngineError, InferenceEngine, Precision, Settings, Want};

use crate::logits::{TOLERANCE, max_abs_difference};
use crate::models::{Model, Reference, bundle_at, fixtures};

/// Tokens that each sequence is continued by, one by one, and then in one piece.
const STEPS: usize = 3;

/// The logits of a batch of `prompts`, and of each alone, each prompt continued by `steps`: those of its last
/// token, of each step, and of all steps in one piece.
fn both<E: InferenceEngine + Decode>(
    engine: &mut E,
    prompts: &[&[u32]],
    steps: &[&[u32]],
    capacity: usize,
) -> Result<[Vec<Vec<f32>>; 2], EngineError> {
    let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
    let mut together = vec![Vec::new(); prompts.len()];
    let mut put = |logits: &[f32]| {
        let rows = logits.chunks_exact(logits.len() / prompts.len());
        together.iter_mut().zip(rows).for_each(|(all, row)| all.extend_from_slice(row));
    };
    engine.begin(prompts.len(), capacity)?;
    put(engine.append_each(&prompts.concat(), &lengths)?);
    for step in 0..steps[0].len() {
        let tokens: Vec<u32> = steps.iter().map(|steps| steps[step]).collect();
        put(engine.append(&tokens, Want::Last)?);
    }
    put(engine.append(&steps.concat(), Want::All)?);
    let mut alone = Vec::new();
    for (prompt, steps) in prompts.iter().zip(steps) {
        let mut all = Vec::new();
        engine.begin(1, capacity)?;
        all.extend_from_slice(engine.append(prompt, Want::Last)?);
        for &token in *steps {
            all.extend_from_slice(engine.append(&[token], Want::Last)?);
        }
        all.extend_from_slice(engine.append(steps, Want::All)?);
        alone.push(all);
    }
    Ok([together, alone])
}

/// For any lengths, every engine gives for each prompt of a batch the same as alone, or refuses such a batch.
pub(crate) fn prompts_of_any_lengths_give_what_each_gives_alone<E: InferenceEngine + Decode>(
    engine: &mut E,
    r: &Reference,
) {
    let longest = r.positions - 2 * STEPS;
    let row = |sequence: usize| r.rows()[sequence % r.batch];
    // The longest first, last and in the middle; one token alone; a batch that follows one of equal lengths.
    for lengths in [vec![1, longest, longest / 2], vec![longest, 2], vec![3, 5, longest]] {
        let cut = |(place, &length): (usize, &usize)| &row(place)[place..place + length];
        let prompts: Vec<&[u32]> = lengths.iter().enumerate().map(cut).collect();
        let steps: Vec<&[u32]> = (0..lengths.len()).map(|place| &row(place + 1)[..STEPS]).collect();
        let [together, alone] = match both(engine, &prompts, &steps, r.positions) {
            Ok(both) => both,
            Err(EngineError::Unsupported(reason)) => {
                assert!(reason.contains("length"), "a refusal says what is refused: {reason}");
                return;
            }
            Err(error) => panic!("prompts of {lengths:?} tokens: {error}"),
        };
        for (place, (ours, theirs)) in together.iter().zip(&alone).enumerate() {
            let difference = max_abs_difference(ours, theirs);
            assert!(
                difference <= TOLERANCE,
                "sequence {place} of prompts of {lengths:?} tokens differs by {difference} from the same alone"
            );
        }
        engine.begin(lengths.len(), r.positions).expect("begins");
        engine.append_each(&prompts.concat(), &lengths).expect("appends");
        assert!(engine.padding().is_some(), "the engine reports its padding");
        engine.begin(lengths.len(), r.positions).expect("begins");
        assert_eq!(engine.padding(), None, "and is gone with its sequences");
    }
}

/// A plain model and one with a sliding window, for [`check_lengths`].
pub const OF_ANY_LENGTHS: [&str; 2] = ["tiny/llama-gqa-tied", "architectures/gemma3"];

/// Prompts of 16, 64 and 256 tokens in one batch: the same logits as for each alone. Settings that refuse
/// such a batch, or one of the models, fail.
pub fn check_lengths<E: InferenceEngine + Decode>(settings: &Settings, models: &[&str]) {
    for source in models.iter().map(|model| fixtures().with_file_name(model)) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bundle = with_longer_context(&source, directory.path());
        let mut engine = E::load(&bundle, settings).expect("loads");
        let vocabulary = bundle.config().vocab_size as u32;
        let tokens: Vec<u32> = (0..256).map(|place| (place * 7 + 3) % vocabulary).collect();
        let prompts = [&tokens[5..21], &tokens[..64], &tokens[..]];
        let steps = [9, 40, 90].map(|first| &tokens[first..first + STEPS]);
        let [together, alone] = both(&mut engine, &prompts, &steps, 256 + 2 * STEPS).expect("any lengths");
        for (prompt, (ours, theirs)) in prompts.iter().zip(together.iter().zip(&alone)) {
            let (tokens, difference) = (prompt.len(), max_abs_difference(ours, theirs));
            assert!(difference <= TOLERANCE, "{}: {tokens} tokens differ by {difference}", source.display());
        }
    }
}

/// A tiny model that says it has room for 512 tokens, in f32.
fn with_longer_context(source: &Path, directory: &Path) -> Bundle {
    let copy = directory.join("model");
    std::fs::create_dir(&copy).expect("a directory");
    for entry in std::fs::read_dir(source).expect("a directory") {
        let entry = entry.expect("readable");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copies");
    }
    let path = copy.join("config.json");
    let text = std::fs::read_to_string(&path).expect("a configuration");
    let longer = text.replace(r#""max_position_embeddings": 256"#, r#""max_position_embeddings": 512"#);
    assert_ne!(longer, text, "the configuration says how much room there is");
    std::fs::write(&path, longer).expect("writes");
    bundle_at(&copy, &directory.join("bundles"), &[Precision::F32])
}

/// These settings refuse prompts of different lengths, in a sentence that says so.
pub fn refuses_lengths<E: InferenceEngine + Decode>(settings: &Settings) {
    let model = Model::tiny("gpt2");
    let mut engine = E::load(&model.bundle, settings).expect("loads");
    engine.begin(2, 8).expect("begins");
    match engine.append_each(&[1, 2, 3], &[1, 2]) {
        Err(EngineError::Unsupported(reason)) => assert!(reason.contains("length"), "{reason}"),
        other => panic!("prompts of different lengths: {:?}", other.map(<[f32]>::len)),
    }
}
