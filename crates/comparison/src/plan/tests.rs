//! Requests as data, their plans, and their errors before anything is measured.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bundle::{ModelConfig, Precision};
use configs::{Engine, Suite, SuitePrompt};
use protocol::KvCache;
use serde_json::json;

use super::prompts::Text;
use super::sweep::SweepKind;
use super::*;

fn engine(name: &str) -> Engine {
    Engine { name: name.into(), framework: name.into(), ..Engine::default() }
}

/// Two engines, `a` and `b`, and a variant `a-base`.
struct Known;

impl Engines for Known {
    fn engine(&self, name: &str) -> Result<Engine> {
        match name {
            "a" | "b" | "a-base" | "a-eager-attention" => Ok(engine(name)),
            "compiled" => Ok(Engine { compiles: Some("a compiler".into()), ..engine(name) }),
            _ => Err(Failure::usage(format!("there is no framework {name:?}"))),
        }
    }

    fn selected(&self, names: &[String]) -> Result<Vec<Engine>> {
        if names.is_empty() {
            return Ok(vec![engine("a"), engine("b")]);
        }
        names.iter().map(|name| self.engine(name)).collect()
    }

    fn encodes(&self, model: &str) -> Result<bool> {
        Ok(model == "encoder")
    }
}

fn draft(request: &Request) -> Result<Draft> {
    let suite = Suite { prompts: vec![SuitePrompt::default()], ..Suite::default() };
    Draft::new(request, vec![engine("a"), engine("b")], suite, 4)
}

/// The plan of a request with a prompt of each of these lengths.
fn planned(request: &Request, lengths: &[usize], available_memory: Option<u64>) -> Result<Plan> {
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 512, "tie_word_embeddings": true
    });
    let prompt = |&length: &usize| Prompt {
        name: format!("{length} tokens"),
        tokens: (0..length as u32).map(|token| token % 8).collect(),
        ..Prompt::default()
    };
    draft(request)?.plan(Given {
        name: "m",
        config: &ModelConfig::from_json(&config).unwrap(),
        no_tokenizer: None,
        pooled: None,
        prompts: lengths.iter().map(prompt).collect(),
        arrays: Default::default(),
        cpus: None,
        available_memory,
        drawn_seed: 1,
        quality: None,
    })
}

/// The error and the exit code of a rejected request.
fn refused(request: &Request) -> (String, u8) {
    let failure = draft(request).map(|_| ()).unwrap_err();
    (failure.to_string(), failure.exit_code())
}

/// The plan of a study by the engines above.
fn study(kind: StudyKind, request: Request) -> Result<StudyPlan> {
    StudyRequest { kind, request }.plan(&Known)
}

fn ab(what: &str, request: Request) -> Result<StudyPlan> {
    study(StudyKind::Ab(vec![what.into()]), request)
}

fn sweep(kind: SweepKind, request: Request) -> Result<StudyPlan> {
    study(StudyKind::Sweep(kind), request)
}

/// A request for a comparison of these.
fn of(frameworks: &[&str]) -> Request {
    let frameworks = frameworks.iter().map(|name| (*name).to_owned()).collect();
    Request { frameworks, ..Request::default() }
}

#[test]
fn nothing_asked_for_is_the_usual_comparison() {
    let request = Request::from_json(&json!({})).unwrap();
    assert_eq!(request, Request::default());
    assert_eq!((request.model(), request.precision()), (configs::DEFAULT_MODEL, Precision::F32));
    assert_eq!((request.jit, request.fair_comparison, request.names_prompts()), (true, true, false));
}

#[test]
fn a_gpu_is_asked_for_16_bits_unless_told() {
    let on_gpu = Request { device: "cuda:0".into(), ..Request::default() };
    assert_eq!((on_gpu.precision(), on_gpu.half()), (Precision::F16, Precision::F16));
    let told = Request { precisions: vec![Precision::F32], ..on_gpu };
    assert_eq!(told.precision(), Precision::F32);
    assert_eq!(Request::default().half(), Precision::Bf16);
}

#[test]
fn a_request_survives_json() {
    let mut request = Request {
        frameworks: vec!["a".into(), "a".into()],
        precisions: vec![Precision::Nf4],
        prompts: PromptSource::Tokens(vec![1, u32::MAX]),
        rounds: Some(RoundsAsked::Fixed(6)),
        decode: Some(DecodeAsked::Greedy),
        kv_cache: KvCache::Off,
        seed: Some(u64::MAX),
        delay_s: 0.1,
        ..Request::default()
    };
    request.sampling.temperature = Some(0.7);
    request.study.arms = vec![Arm { label: "a (new)".into(), jit: Some(false), ..Arm::default() }];
    assert_eq!(Request::from_json(&request.to_json()).unwrap(), request);
    let text = request.to_json().to_string();
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
}

#[test]
fn outside_a_study_nothing_is_said_of_one() {
    assert_eq!(Request::default().to_json().get("study"), None);
}

#[test]
fn a_request_of_an_older_version_equals_what_it_meant() {
    let mut older = Request::default().to_json();
    older.as_object_mut().unwrap().remove("kv_cache");
    older.as_object_mut().unwrap().remove("patience_s");
    assert_eq!(Request::from_json(&older).unwrap(), Request::default());
}

#[test]
fn a_field_of_a_newer_version_is_named() {
    let refused = |request: serde_json::Value| Request::from_json(&request).unwrap_err();
    let failure = refused(json!({"speculative_tokens": 4}));
    assert!(failure.to_string().contains("`speculative_tokens`"), "{failure}");
    assert_eq!(failure.exit_code(), 2);
    for within in [json!({"sampling": {"min_p": 0.1}}), json!({"study": {"min_p": 1}})] {
        assert!(refused(within).to_string().contains("`min_p`"));
    }
}

#[test]
fn a_study_survives_json_and_measures_the_same_whatever_is_said_of_it() {
    let study =
        StudyRequest { kind: StudyKind::Ab(vec!["a".into(), "b".into()]), request: Request::default() };
    let read: StudyRequest = serde_json::from_value(serde_json::to_value(&study).unwrap()).unwrap();
    assert_eq!(read, study);
    let mut other = study.clone();
    other.request.study.analysis = "what it shows".into();
    assert!(study.measures_the_same(&other));
    other.request.seed = Some(1);
    assert!(!study.measures_the_same(&other));
}

#[test]
fn a_sweep_has_a_cell_for_every_place_and_a_name_that_says_its_view() {
    let request = Request { batch: vec![1, 2], prompt_tokens: vec![8], ..Request::default() };
    let plan = sweep(SweepKind::Forward, request).unwrap();
    assert_eq!((plan.name.as_str(), plan.cells.len()), ("sweep forward", 2));
    assert_eq!(plan.view, StudyView::Sweep(SweepKind::Forward));
    let cell = &plan.cells[1].request;
    assert_eq!((cell.batch.clone(), cell.new_tokens.clone()), (vec![2], vec![1]));
    assert_eq!((cell.study.name.as_str(), cell.rounds), ("sweep forward", Some(RoundsAsked::Fixed(6))));
}

#[test]
fn an_a_b_study_sets_two_arms_of_each_framework_side_by_side() {
    let plan = ab("fused", Request::default()).unwrap();
    assert_eq!(plan.view, StudyView::Ab(["fused".into(), "base".into()]));
    let labels: Vec<_> = plan.cells[0].request.study.arms.iter().map(|arm| arm.label.clone()).collect();
    assert_eq!(labels, ["a (fused)", "a (base)"]);
    assert_eq!(plan.cells[0].request.study.refused, None);
    let why = plan.cells[1].request.study.refused.as_deref().unwrap();
    assert!(why.starts_with("b has no variant to compare it with"), "{why}");
}

#[test]
fn attention_is_switched_by_a_variant_and_refused_in_a_sentence_where_there_is_none() {
    let plan = ab("attention", Request::default()).unwrap();
    let study = &plan.cells[0].request.study;
    let engines: Vec<_> = study.arms.iter().map(|arm| arm.engine.as_str()).collect();
    assert_eq!((engines, &study.refused), (vec!["a", "a-eager-attention"], &None));
    let why = plan.cells[1].request.study.refused.as_deref();
    assert_eq!(why, Some("b has no variant here that differs in attention alone"));
}

#[test]
fn a_study_that_there_is_not_is_refused() {
    let unknown = ab("speed", Request::default()).unwrap_err().to_string();
    assert!(
        unknown.contains("there are forward, generate") && unknown.contains("kv-cache, jit"),
        "{unknown}"
    );
    let quantised = Request { quantize: vec![Precision::Int8], ..Request::default() };
    let error = sweep(SweepKind::Memory, quantised).unwrap_err().to_string();
    assert!(error.contains("a sweep takes --precision"), "{error}");
}

fn labels(request: &Request) -> Vec<&str> {
    request.study.arms.iter().map(|arm| arm.label.as_str()).collect()
}

#[test]
fn a_study_of_warm_up_sets_who_compiles_beside_itself_without() {
    let warmup =
        |frameworks: &[&str], jit| sweep(SweepKind::Warmup, Request { jit, ..of(frameworks) }).unwrap();
    let both = warmup(&["compiled", "a"], true).cells.remove(0).request;
    assert_eq!(labels(&both), ["compiled", "compiled (no JIT)", "a"]);
    assert_eq!((both.study.arms[1].jit, both.study.varied), (Some(false), vec!["R14".to_owned()]));
    for plan in [warmup(&["a", "b"], true), warmup(&["compiled"], false)] {
        assert!(labels(&plan.cells[0].request).is_empty(), "nothing to switch");
    }
}

#[test]
fn a_framework_without_a_jit_is_not_held_against_itself() {
    let cells = ab("jit", of(&["a", "compiled"])).unwrap().cells;
    assert!(cells[0].request.study.refused.as_deref().unwrap().starts_with("there is neither a JIT nor"));
    assert_eq!((&cells[1].request.study.refused, labels(&cells[1].request).len()), (&None, 2));
    let error = ab("jit", of(&["a", "b"])).unwrap_err();
    assert!(error.to_string().starts_with("a, b: there is neither a JIT nor graph optimisation"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_short_warm_up_takes_enough_tokens_to_be_tested() {
    let request = Request { new_tokens: vec![20], ..Request::default() };
    let error = sweep(SweepKind::ShortWarmup, request).unwrap_err().to_string();
    assert!(error.contains("--new-tokens 20 is too few, give 21 or more"), "{error}");
}

#[test]
fn weights_over_several_devices_are_columns_of_a_comparison_and_not_of_an_a_b_study() {
    let request = Request { shards: vec![1, 2], ..Request::default() };
    let labels: Vec<String> = planned(&request, &[2], None)
        .unwrap()
        .contenders
        .into_iter()
        .map(|contender| contender.label)
        .collect();
    assert_eq!(labels, ["a", "a on 2 devices", "b", "b on 2 devices"]);
    let mut ab = request;
    ab.study.arms = vec![Arm::default(), Arm::default()];
    assert!(refused(&ab).0.starts_with("--tensor-parallel takes one number here"), "{:?}", refused(&ab));
}

#[test]
fn a_draft_refuses_what_cannot_be_one_comparison() {
    let several = Request { threads: vec![1, 2], ..Request::default() };
    let elsewhere = Request { reference: Some("c".into()), ..Request::default() };
    let nothing = Request { new_tokens: vec![0], ..Request::default() };
    // No flag accepts these; a plan's or a history's file may contain them.
    let negative = Request { delay_s: -1.0, ..Request::default() };
    let endless = Request { timeout_s: u64::MAX, ..Request::default() };
    let empty = Draft::new(&Request::default(), vec![engine("a")], Suite::default(), 4);
    assert_eq!(empty.map(|_| ()).unwrap_err().to_string(), "the request has no prompts");
    let mut senseless = Request::default();
    senseless.study.refused = Some("no variant".into());
    for (request, said) in [
        (several, "--threads takes one value here; several are a sweep: `photofinish sweep generate`"),
        (elsewhere, "--parity-reference \"c\" is not among the frameworks compared: a, b"),
        (nothing, "suite \"default\" asks for 0 rounds, iterations or new tokens"),
        (negative, "the request's delay_s is out of range"),
        (endless, "the request's timeout_s is out of range"),
        (senseless, "no variant"),
    ] {
        assert_eq!(refused(&request), (said.to_owned(), 2));
    }
}

#[test]
fn a_draft_resolves_threads_and_contenders() {
    let request = Request { threads: vec![3], ..Request::default() };
    let draft = draft(&request).unwrap();
    assert_eq!((draft.threads, draft.precisions()), (3, vec![Precision::F32; 2]));
    assert_eq!(draft.engines(), [engine("a"), engine("b")]);
    assert_eq!((draft.batch(), draft.lengths.context, draft.least_capacity()), (1, 0, 32));
}

#[test]
fn requests_are_interleaved_where_all_workers_fit_into_memory_together() {
    let (little, enough) = (300_000_000, 10_000_000_000);
    let asked = |schedule| Request { schedule, ..Request::default() };
    let of = |schedule, memory| {
        planned(&asked(schedule), &[2], Some(memory)).map(|plan| (plan.schedule, plan.schedule_reason))
    };
    assert_eq!(of(ScheduleAsked::Auto, enough).unwrap(), (Schedule::Interleaved, None));
    let (schedule, reason) = of(ScheduleAsked::Auto, little).unwrap();
    assert_eq!(schedule, Schedule::Sequential);
    assert!(
        reason.unwrap().starts_with("all 2 workers together may need 0.50 GB, and 0.30 GB are available")
    );
    let refused = of(ScheduleAsked::Interleaved, little).unwrap_err();
    assert!(refused.to_string().contains("compare fewer frameworks"), "{refused}");
    assert_eq!(of(ScheduleAsked::Sequential, enough).unwrap().0, Schedule::Sequential);
}

#[test]
fn the_number_of_blocks_is_chosen_only_where_nobody_asked_for_one() {
    let chooses_blocks = |request: &Request| planned(request, &[2], None).unwrap().chooses_blocks;
    assert!(chooses_blocks(&Request::default()));
    assert!(!chooses_blocks(&Request { iterations: Some(3), ..Request::default() }));
    assert!(!chooses_blocks(&Request { rounds: Some(RoundsAsked::Fixed(6)), ..Request::default() }));
    assert!(!chooses_blocks(&Request { schedule: ScheduleAsked::Sequential, ..Request::default() }));
}

#[test]
fn a_turn_begins_with_a_lead_in_unless_a_longer_context_does_its_work() {
    let usual = planned(&Request::default(), &[2], None).unwrap();
    let behind = |context: usize| {
        let mut plan = usual.clone();
        if let Work::Generate(work) = &mut plan.work {
            work.context = context;
        }
        plan
    };
    let lead_in = |plan: &Plan| plan.lead_in(&plan.contenders[0]);
    // The prompt has two tokens.
    assert_eq!([0, 4, 5].map(|context| lead_in(&behind(context))), [2, 2, 0]);
    assert_eq!(lead_in(&Plan { device: "cuda:0".into(), ..behind(5) }), 2, "a GPU's clock has to settle");
    assert_eq!(lead_in(&Plan { schedule: Schedule::Sequential, ..usual.clone() }), 0, "nobody waits");
    let mut uncached = behind(5);
    uncached.contenders[0].cache.policy = KvCache::Off;
    assert_eq!(lead_in(&uncached), 2, "without a cache no context is computed before");
    let batch = |batch: usize| {
        let mut plan = behind(0);
        if let Work::Generate(work) = &mut plan.work {
            work.prompted.batch = batch;
        }
        plan
    };
    assert_eq!([255, 256].map(|rows| lead_in(&batch(rows))), [2, 0], "512 tokens of prompts lead themselves");
    assert_eq!(lead_in(&Plan { device: "cuda:0".into(), ..batch(256) }), 2);
}

#[test]
fn a_study_of_an_encoder_continues_nothing() {
    let encoder = || Request { models: vec!["encoder".into()], ..Request::default() };
    for plan in [ab("half", encoder()), sweep(SweepKind::Precision, encoder())] {
        let plan = plan.unwrap();
        let request = &plan.cells[0].request;
        assert_eq!((&request.new_tokens[..], request.names_prompts()), (&[][..], false), "{}", plan.name);
    }
    let crossed = ab("optimised", encoder()).unwrap_err().to_string();
    assert!(crossed.contains("encoder encodes texts") && crossed.contains("`sweep half`"), "{crossed}");
    let both = Request { models: vec!["encoder".into(), "decoder".into()], ..Request::default() };
    let mixed = sweep(SweepKind::Size, both).unwrap_err().to_string();
    assert_eq!(mixed, "encoder encodes texts and decoder continues them: a study takes models of one kind");
    let alone = sweep(SweepKind::Size, encoder()).unwrap_err().to_string();
    assert!(alone.contains("takes --model several times"), "{alone}");
    let timed = EncodeAsked { include_tokenizer: true, ..EncodeAsked::default() };
    let embed = sweep(SweepKind::Embed, Request { encode: timed, ..encoder() }).unwrap();
    assert_eq!(embed.cells[0].request.prompt_tokens, [0; 0], "texts are timed as they are written");
    let forward = sweep(SweepKind::Forward, encoder()).unwrap_err().to_string();
    assert!(forward.contains("`sweep forward` is for models that continue them"), "{forward}");
}

// Prompts of different lengths in one batch.

fn mixed(batch: &[u32]) -> Request {
    let prompt_lengths = vec![3, 5, 9];
    Request { mixed: true, batch: batch.to_vec(), prompt_lengths, new_tokens: vec![4], ..Request::default() }
}

#[test]
fn all_prompts_are_one_case_and_padding_is_no_token() {
    let work = planned(&mixed(&[]), &[3, 5, 9], None).unwrap().work;
    assert_eq!((work.cases(), work.batch(), work.case_name(0)), (1, 3, "3 + 5 + 9 tokens"));
    assert_eq!((work.size(0), work.capacity()), ((3, 17), 9 + 4));
    assert_eq!(work.judged_positions(0), Some(1 + 4), "they have no other position in common");
    let larger = planned(&mixed(&[4]), &[3, 5, 9], None).unwrap().work;
    assert_eq!((larger.batch(), larger.size(0)), (4, (4, 20)), "lengths take turns");
    let rows = larger.prompted().unwrap().case_prompts().remove(0);
    assert_ne!(rows[0], rows[3], "with other content");
}

#[test]
fn the_reference_computes_each_alone() {
    let work = planned(&mixed(&[]), &[3, 5, 9], None).unwrap().work;
    let protocol::Work::Generate(alone) = work.of_reference() else { panic!("it continues prompts") };
    assert_eq!(alone.cases.iter().map(|case| case.prompts.len()).collect::<Vec<_>>(), [1, 1, 1]);
    let protocol::Work::Generate(asked) = work.asked(KvCache::On, &work.fallback_outputs()) else {
        panic!("it continues prompts")
    };
    assert_eq!((asked.cases.len(), asked.cases[0].prompts.len(), asked.cases[0].trace.len()), (1, 3, 3));
}

#[test]
fn what_cannot_be_mixed_is_refused_in_a_sentence() {
    let tokens = Request { prompt_tokens: vec![3, 5], prompt_lengths: Vec::new(), ..mixed(&[]) };
    for (request, lengths, said) in [
        (mixed(&[]), &[3][..], "there is one prompt"),
        (mixed(&[2]), &[3, 5, 9], "a batch of 2 cannot hold"),
        (Request { context: vec![8], ..mixed(&[]) }, &[3, 5], "leave --context out"),
        (
            Request { prefill_chunk: vec![2], ..mixed(&[]) },
            &[3, 5],
            "--prefill-chunk cuts prompts of one length",
        ),
        (tokens, &[3, 5], "--prompt-lengths 16,64,256"),
    ] {
        let error = planned(&request, lengths, None).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn callers_have_prompts_of_several_lengths() {
    let serving = ServingAsked { callers: vec![4], ..ServingAsked::default() };
    let request = Request { mixed: false, serving, ..mixed(&[]) };
    let work = planned(&request, &[3, 5, 9], None).unwrap().work;
    assert_eq!((work.cases(), work.batch()), (1, 8));
    assert!(work.words().contains("behind prompts of 3 + 5 + 9 tokens"), "{}", work.words());
    assert!(planned(&Request { mixed: true, ..request }, &[3, 5], None).is_err());
}

#[test]
fn a_batch_that_fills_the_memory_has_the_logits_of_its_first_sequences_compared() {
    let request = Request { batch: vec![4000], batch_max: true, new_tokens: vec![400], ..Request::default() };
    let work = planned(&request, &[9], None).unwrap().work;
    assert_eq!(work.judged_sequences(), (1 << 24) / (401 * 64));
    let asked = Request { batch_max: false, ..request };
    assert_eq!(planned(&asked, &[9], None).unwrap().work.judged_sequences(), 4000);
}

// Tokenizers with SentencePiece tables, which XLM-RoBERTa and other multilingual encoders have.

/// The ids of "b a" by a tokenizer with these tables.
fn encoded(tables: &[u8]) -> Result<Vec<u32>> {
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(tables)}
        ]},
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    });
    Text::parse("mine", tokenizer.to_string().as_bytes())?.encode("b a")
}

#[test]
fn tables_that_are_whole_are_read_and_broken_ones_are_refused_in_a_sentence() {
    let size = |bytes: u32| bytes.to_le_bytes().to_vec();
    let whole = [size(1024), vec![0; 1024]].concat();
    assert_eq!(encoded(&whole).unwrap(), [1, 0]);
    // A trie without room for a letter.
    let small = encoded(&[size(4), vec![0; 4]].concat()).unwrap_err().to_string();
    assert!(!small.is_empty(), "{small}");
    for broken in [[size(2048), vec![0; 1024]].concat(), [size(6), vec![0; 8]].concat(), size(0), Vec::new()]
    {
        let refused = encoded(&broken).unwrap_err().to_string();
        assert!(
            refused.contains("tokenizer.json of mine is not a tokenizer") && refused.contains("broken"),
            "{refused}"
        );
    }
}
