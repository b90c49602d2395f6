//! `photofinish generate --temperature`: tokens that are drawn.

use serde_json::Value;

use crate::common::{Installation, Ran};

fn generate(installation: &Installation, arguments: &[&str]) -> Ran {
    let common =
        ["generate", "--framework", "one", "--tokens", "1,2", "--new-tokens", "20", "--format", "json"];
    installation.run(&[&common, arguments].concat())
}

fn tokens(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.json()["tokens"].clone()
}

#[test]
fn a_seed_draws_the_same_tokens_on_every_engine_with_the_same_logits() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]);
    let drawn = |arguments: &[&str]| tokens(&generate(&installation, arguments));
    let first = drawn(&["--temperature", "9", "--seed", "42"]);
    assert_eq!(first, drawn(&["--temperature", "9", "--seed", "42"]));
    assert_ne!(first, drawn(&["--temperature", "9", "--seed", "43"]));
    assert_ne!(first, drawn(&[]));
    let on = |name: &str| {
        let arguments =
            ["generate", "--framework", name, "--tokens", "1,2", "--new-tokens", "20", "--format", "json"];
        tokens(&installation.run(&[&arguments[..], &["--temperature", "9", "--seed", "42"]].concat()))
    };
    assert_eq!(on("two"), first);
}

#[test]
fn of_the_most_likely_token_alone_nothing_is_drawn() {
    let installation = Installation::new().engine("one", &[]);
    let greedy = tokens(&generate(&installation, &[]));
    let same = [
        &["--temperature", "0"][..],
        &["--temperature", "9", "--top-k", "1"],
        &["--temperature", "9", "--top-p", "0.000001"],
    ];
    for arguments in same {
        assert_eq!(tokens(&generate(&installation, arguments)), greedy, "{arguments:?}");
    }
}

#[test]
fn a_seed_that_is_drawn_is_told_and_draws_the_same_again() {
    let installation = Installation::new().engine("one", &[]);
    let ran = generate(&installation, &["--temperature", "9"]);
    let told: Vec<&str> =
        ran.stderr.split_whitespace().skip_while(|word| *word != "--seed").take(2).collect();
    let again = generate(&installation, &[&["--temperature", "9"], &told[..]].concat());
    assert_eq!((told.len(), tokens(&again)), (2, tokens(&ran)));
    let keys: Vec<String> = ran.json().as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["framework", "precision", "prompt_tokens", "text", "tokens"]);
}

#[test]
fn what_draws_nothing_is_refused() {
    let installation = Installation::new().engine("one", &[]);
    for (arguments, said) in [
        (&["--top-k", "3"][..], "--temperature"),
        (&["--top-p", "0.5"], "--temperature"),
        (&["--seed", "1"], "--temperature"),
        (&["--temperature=-1"], "0 to 1000"),
        (&["--temperature", "NaN"], "0 to 1000"),
        (&["--temperature", "1", "--top-p", "0"], "above 0"),
        (&["--temperature", "1", "--top-k", "0"], "--top-k"),
    ] {
        generate(&installation, arguments).refused(&[said]);
    }
}
