//! `photofinish run --temperature`: tokens that are drawn.

use crate::common::{Installation, Ran};

fn generate(installation: &Installation, more: &str) -> Ran {
    let line = "run --tokens 1,2 --new-tokens 20 --format json";
    let framework = if more.contains("--framework ") { "" } else { "--framework one" };
    installation.run(&format!("{line} {framework} {more}"))
}

#[test]
fn a_seed_draws_the_same_tokens_on_every_engine_with_the_same_logits() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]);
    let tokens = |more: &str| generate(&installation, more).exits(0).json()["tokens"].take();
    let first = tokens("--temperature 9 --seed 42");
    assert_eq!(first, tokens("--temperature 9 --seed 42"));
    assert_eq!(first, tokens("--temperature 9 --seed 42 --framework two"));
    assert_ne!(first, tokens("--temperature 9 --seed 43"));
    let greedy = tokens("");
    assert_ne!(first, greedy);
    // Of the most likely token alone nothing is drawn.
    for more in ["--temperature 0", "--temperature 9 --top-k 1", "--temperature 9 --top-p 0.000001"] {
        assert_eq!(tokens(more), greedy, "{more}");
    }
}

#[test]
fn a_seed_that_is_drawn_is_told_and_draws_the_same_again() {
    let installation = Installation::new().engine("one", &[]);
    let ran = generate(&installation, "--temperature 9").exits(0);
    let (drawn, said) = (ran.json(), ran.stderr);
    let seed = said.split_whitespace().skip_while(|word| *word != "--seed").nth(1).unwrap();
    let again = generate(&installation, &format!("--temperature 9 --seed {seed}")).exits(0).json();
    assert_eq!(again["tokens"], drawn["tokens"]);
    let keys: Vec<&String> = drawn.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["framework", "precision", "prompt_tokens", "text", "tokens"]);
}

#[test]
fn what_draws_nothing_is_refused() {
    let installation = Installation::new().engine("one", &[]);
    for (more, said) in [
        ("--top-k 3", "--temperature"),
        ("--top-p 0.5", "--temperature"),
        ("--seed 1", "--temperature"),
        ("--temperature=-1", "0 to 1000"),
        ("--temperature NaN", "0 to 1000"),
        ("--temperature 1 --top-p 0", "above 0"),
        ("--temperature 1 --top-k 0", "--top-k"),
    ] {
        generate(&installation, more).refused(&[said]);
    }
}
