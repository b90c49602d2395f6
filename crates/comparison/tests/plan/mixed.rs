//! Prompts of different lengths in one batch.

use bundle::ModelConfig;
use comparison::plan;
use comparison::plan::{Draft, Given, Plan, Prompt, Request, ServingAsked};
use configs::{Engine, Suite, SuitePrompt};
use protocol::KvCache;
use serde_json::json;

/// The plan of a request with a prompt of each of these lengths.
fn planned(request: &Request, lengths: &[usize]) -> plan::Result<Plan> {
    let config = json!({
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 1, "vocab_size": 64, "max_position_embeddings": 512
    });
    let suite = Suite { prompts: vec![SuitePrompt::default()], ..Suite::default() };
    let engine = Engine { name: "a".into(), framework: "a".into(), ..Engine::default() };
    let prompt = |&length: &usize| Prompt {
        name: format!("{length} tokens"),
        text: None,
        pair: None,
        chat: None,
        tokens: (0..length as u32).map(|token| token % 8).collect(),
        types: Vec::new(),
        special: [0, 0],
    };
    Draft::new(request, vec![engine], suite, 4)?.plan(Given {
        name: "m",
        config: &ModelConfig::from_json(&config).unwrap(),
        no_tokenizer: None,
        pooled: None,
        prompts: lengths.iter().map(prompt).collect(),
        arrays: Default::default(),
        cpus: None,
        available_memory: None,
        drawn_seed: 1,
        quality: None,
    })
}

fn mixed(batch: &[u32]) -> Request {
    let prompt_lengths = vec![3, 5, 9];
    Request { mixed: true, batch: batch.to_vec(), prompt_lengths, new_tokens: vec![4], ..Request::default() }
}

#[test]
fn all_prompts_are_one_case_and_padding_is_no_token() {
    let work = planned(&mixed(&[]), &[3, 5, 9]).unwrap().work;
    assert_eq!((work.cases(), work.batch(), work.case_name(0)), (1, 3, "3 + 5 + 9 tokens"));
    assert_eq!((work.size(0), work.capacity()), ((3, 17), 9 + 4));
    assert_eq!(work.judged_positions(0), Some(1 + 4), "they have no other position in common");
    let larger = planned(&mixed(&[4]), &[3, 5, 9]).unwrap().work;
    assert_eq!((larger.batch(), larger.size(0)), (4, (4, 20)), "lengths take turns");
    let rows = larger.prompted().unwrap().case_prompts().remove(0);
    assert_ne!(rows[0], rows[3], "with other content");
}

#[test]
fn the_reference_computes_each_alone() {
    let work = planned(&mixed(&[]), &[3, 5, 9]).unwrap().work;
    let protocol::Work::Generate(alone) = work.of_reference() else { panic!("it continues prompts") };
    assert_eq!(alone.cases.iter().map(|case| case.prompts.len()).collect::<Vec<_>>(), [1, 1, 1]);
    let protocol::Work::Generate(asked) = work.asked(KvCache::On, &work.fallback_outputs()) else {
        panic!("it continues prompts")
    };
    assert_eq!((asked.cases.len(), asked.cases[0].prompts.len(), asked.cases[0].trace.len()), (1, 3, 3));
}

#[test]
fn what_cannot_be_mixed_is_refused_in_a_sentence() {
    let refused = |request: &Request, lengths: &[usize]| planned(request, lengths).unwrap_err().to_string();
    assert!(refused(&mixed(&[]), &[3]).contains("there is one prompt"));
    assert!(refused(&mixed(&[2]), &[3, 5, 9]).contains("a batch of 2 cannot hold"));
    let context = Request { context: vec![8], ..mixed(&[]) };
    assert!(refused(&context, &[3, 5]).contains("leave --context out"));
    let chunked = Request { prefill_chunk: vec![2], ..mixed(&[]) };
    assert!(refused(&chunked, &[3, 5]).contains("--prefill-chunk cuts prompts of one length"));
    let tokens = Request { prompt_tokens: vec![3, 5], prompt_lengths: Vec::new(), ..mixed(&[]) };
    assert!(refused(&tokens, &[3, 5]).contains("--prompt-lengths 16,64,256"));
}

#[test]
fn callers_have_prompts_of_several_lengths() {
    let serving = ServingAsked { callers: vec![4], ..ServingAsked::default() };
    let request = Request { mixed: false, serving, ..mixed(&[]) };
    let work = planned(&request, &[3, 5, 9]).unwrap().work;
    assert_eq!((work.cases(), work.batch()), (1, 8));
    assert!(work.words().contains("behind prompts of 3 + 5 + 9 tokens"), "{}", work.words());
    assert!(planned(&Request { mixed: true, ..request }, &[3, 5]).is_err());
}

#[test]
fn a_batch_that_fills_the_memory_has_the_logits_of_its_first_sequences_compared() {
    let request = Request { batch: vec![4000], batch_max: true, new_tokens: vec![400], ..Request::default() };
    let work = planned(&request, &[9]).unwrap().work;
    assert_eq!(work.judged_sequences(), (1 << 24) / (401 * 64));
    let asked = Request { batch_max: false, ..request };
    assert_eq!(planned(&asked, &[9]).unwrap().work.judged_sequences(), 4000);
}
