//! Every target over its corpus, without a fuzzer: seeds, and inputs that once were findings.

use std::time::{Duration, Instant};

use fuzz::memory::Counting;
use fuzz::{TARGETS, Target, mutate};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A finding panics, and names its file.
#[test]
fn no_input_of_the_corpus_is_a_finding_and_each_target_accepts_some() {
    for target in &TARGETS {
        let files = target.corpus().unwrap_or_else(|error| panic!("no seeds of {}: {error}", target.name));
        let outcomes: Vec<_> = files
            .iter()
            .map(|file| {
                eprintln!("{}", file.display());
                target.run(&std::fs::read(file).unwrap())
            })
            .collect();
        let name = target.name;
        let is_reached = outcomes.iter().any(Result::is_ok);
        assert!(is_reached, "nothing behind the first check of {name} is reached: {outcomes:?}");
    }
}

#[test]
fn no_change_to_a_seed_that_keeps_its_form_is_a_finding() {
    for target in &TARGETS {
        let corpus = target.corpus().unwrap();
        let seeds: Vec<_> = corpus.iter().take(3).map(|file| std::fs::read(file).unwrap()).collect();
        for (number, seed) in (0..).zip(seeds.iter().cycle().take(30)) {
            if let Some(changed) = mutate::mutated(seed, target.form, number) {
                let _ = target.run(&changed);
            }
        }
    }
}

/// The readers of models' files over many changed headers. `PHOTOFINISH_MUTATIONS=1000000` makes it a longer run.
/// A finding is written to `target/findings`.
#[test]
fn no_changed_header_of_a_model_s_file_is_a_finding() {
    const READERS: [&str; 8] =
        ["gguf", "safetensors", "tokenizer", "vocabulary", "onnx", "config", "index", "arrays"];
    let count = std::env::var("PHOTOFINISH_MUTATIONS").map_or(20_000, |count| count.parse().unwrap());
    let findings: Vec<String> = std::thread::scope(|scope| {
        let parts = READERS.chunks(READERS.len() / 2).map(|names| {
            scope.spawn(move || names.iter().filter_map(|name| finding(name, count)).collect::<Vec<_>>())
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    });
    assert!(findings.is_empty(), "{findings:#?}");
}

/// The first of so many changed inputs of a target that panics or takes long.
fn finding(name: &str, count: u32) -> Option<String> {
    const SLOWEST: Duration = Duration::from_secs(60);
    let target = Target::named(name).unwrap();
    let seeds: Vec<_> = target.corpus().unwrap().iter().map(|file| std::fs::read(file).unwrap()).collect();
    for number in 0..count {
        let seed = &seeds[number as usize / 4 % seeds.len()];
        let in_form = if number % 4 > 0 { mutate::mutated(seed, target.form, number) } else { None };
        let changed = in_form.unwrap_or_else(|| mutate::bytes(seed, number));
        let start = Instant::now();
        let done = std::panic::catch_unwind(|| target.run(&changed));
        if done.is_err() || start.elapsed() > SLOWEST {
            let file = fuzz::root().join(format!("target/findings/{name}-{number}"));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &changed).unwrap();
            return Some(format!("{} after {:?}", file.display(), start.elapsed()));
        }
    }
    None
}

#[test]
fn a_file_cut_off_or_with_a_changed_bit_is_no_finding() {
    for (name, header, step) in
        [("gguf", 2000, 3), ("safetensors", 4000, 5), ("onnx", 250, 1), ("arrays", 150, 1)]
    {
        let target = Target::named(name).unwrap();
        let original = std::fs::read(target.corpus().unwrap().swap_remove(0)).unwrap();
        let data = (header..original.len()).step_by(original.len() / 20);
        for at in (0..header).step_by(step).chain(data) {
            let _ = target.run(&original[..at]);
            let mut changed = original.clone();
            changed[at] ^= 1 << (at % 8);
            let _ = target.run(&changed);
        }
    }
}

#[test]
fn memory_beyond_the_bound_is_a_finding() {
    let (length, peak) = fuzz::memory::peak_of(|| std::hint::black_box(vec![1u8; 1 << 20]).len());
    assert!(length == 1 << 20 && ((1 << 20)..(2 << 20)).contains(&peak), "{peak}");
}
