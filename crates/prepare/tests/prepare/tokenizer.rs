//! tokenizer.json, built from a GGUF's metadata, splits text as the models' own tokenizer does.

use bundle::Bundle;
use candle_core::quantized::gguf_file::Value;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokenizers::{EncodeInput, Tokenizer};

use crate::common::{Model, prepared_at};
use crate::gguf::{Gguf, GgufInTests};

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The 256 bytes as byte-level BPE spells them.
fn byte_level() -> Vec<String> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 0x100..;
    let spell = |byte: u8| match printable(&byte) {
        true => char::from(byte).to_string(),
        false => char::from_u32(shifted.next().unwrap()).unwrap().to_string(),
    };
    (0..=u8::MAX).map(spell).collect()
}

fn texts(values: &[impl AsRef<str>]) -> Value {
    Value::Array(values.iter().map(|value| Value::String(value.as_ref().to_owned())).collect())
}

/// Adds a vocabulary of bytes, of the results of a few merges, and of some special tokens.
pub(crate) fn with_tokenizer(mut gguf: Gguf, pre: &str) -> Gguf {
    let mut tokens = byte_level();
    let mut types = vec![1; tokens.len()];
    let merges = ["1 2", "12 3", "Ġ a", "( a", "! Ċ", "a b", "Ã ©"];
    let special = [("<|begin|>", CONTROL), ("<tool>", USER_DEFINED), ("[PAD1]", UNUSED), ("whole", 1)];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    types.resize(tokens.len(), 1);
    tokens.extend(special.map(|(token, _)| token.to_owned()));
    types.extend(special.map(|(_, kind)| kind));
    let begin = tokens.iter().position(|token| token == "<|begin|>").unwrap();
    let values = [
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(pre.into())),
        ("tokens", texts(&tokens)),
        ("token_type", Value::Array(types.into_iter().map(Value::I32).collect())),
        ("merges", texts(&merges)),
        ("bos_token_id", Value::U32(begin as u32)),
    ];
    for (key, value) in values {
        put(&mut gguf, key, value);
    }
    gguf
}

/// Sets one of the tokenizer's metadata.
fn put(gguf: &mut Gguf, key: &str, value: Value) {
    gguf.metadata.insert(format!("tokenizer.ggml.{key}"), value);
}

fn gguf(pre: &str) -> Gguf {
    with_tokenizer(Gguf::from_tiny("llama-gqa-tied"), pre)
}

fn tokenizer(gguf: &Gguf) -> (TempDir, Tokenizer) {
    let (bundles, bundle) = gguf.prepared();
    (bundles, Tokenizer::from_file(bundle.tokenizer().unwrap()).unwrap())
}

/// The tokens that the text is split into, with nothing added.
fn pieces(pre: &str, text: &str) -> Vec<String> {
    let (_bundles, tokenizer) = tokenizer(&gguf(pre));
    let encoding = tokenizer.encode(text, false).unwrap();
    assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
    encoding.get_tokens().to_vec()
}

#[test]
fn a_text_is_split_as_the_pre_tokenizer_has_it() {
    for (names, text, expected) in [
        ("gpt-2 llama-bpe", "1234", &["123", "4"][..]),
        ("smollm qwen2", "1234", &["1", "2", "3", "4"]),
        // Split as 412 and 3.
        ("llama-bpe", "4123", &["4", "12", "3"]),
        ("gpt-2 smollm", "(ab!\n", &["(", "ab", "!", "Ċ"]),
        ("llama-bpe llama3 qwen2", "(ab!\n", &["(a", "b", "!Ċ"]),
        ("gpt-2 smollm llama-bpe qwen2", "ab  ab", &["ab", "Ġ", "Ġa", "b"]),
        // Only Llama 3 prefers a whole token to its merges.
        ("llama-bpe", "whole", &["whole"]),
        ("qwen2", "whole", &["w", "h", "o", "l", "e"]),
    ] {
        for pre in names.split(' ') {
            assert_eq!(pieces(pre, text), expected, "{pre} {text:?}");
        }
    }
}

#[test]
fn qwen_normalises_and_others_do_not() {
    let (_a, qwen) = tokenizer(&gguf("qwen2"));
    assert_eq!(qwen.encode("e\u{301}", false).unwrap().get_tokens(), ["Ã©"]);
    let (_b, smollm) = tokenizer(&gguf("smollm"));
    assert_eq!(smollm.encode("e\u{301}", false).unwrap().get_tokens().len(), 3);
}

#[test]
fn special_tokens_are_recognised_and_placeholders_are_not() {
    assert_eq!(pieces("smollm", "<|begin|>ab<tool>"), ["<|begin|>", "ab", "<tool>"]);
    assert!(pieces("smollm", "[PAD1]").len() > 1);
    let (_bundles, tokenizer) = tokenizer(&gguf("smollm"));
    let ids = tokenizer.encode("<|begin|>ab<tool>", false).unwrap();
    assert_eq!(tokenizer.decode(ids.get_ids(), true).unwrap(), "ab<tool>", "only control tokens are special");
}

#[test]
fn a_text_begins_as_the_file_or_the_model_family_says() {
    let first = |gguf: &Gguf| {
        let (_bundles, tokenizer) = tokenizer(gguf);
        tokenizer.encode("ab", true).unwrap().get_tokens()[0].clone()
    };
    assert_eq!(first(&gguf("llama-bpe")), "<|begin|>");
    assert_eq!(first(&gguf("smollm")), "ab");
    for (pre, add, token) in [("llama-bpe", false, "ab"), ("smollm", true, "<|begin|>")] {
        let mut gguf = gguf(pre);
        put(&mut gguf, "add_bos_token", Value::Bool(add));
        assert_eq!(first(&gguf), token);
    }
}

#[test]
fn a_pre_tokenizer_that_is_not_said_follows_from_the_architecture() {
    for (model, digits) in [("qwen3-qknorm", 4), ("gpt2", 2)] {
        let mut gguf = with_tokenizer(Gguf::from_tiny(model), "default");
        let (_a, said) = tokenizer(&gguf);
        gguf.metadata.remove("tokenizer.ggml.pre");
        let (_b, unsaid) = tokenizer(&gguf);
        for tokenizer in [said, unsaid] {
            assert_eq!(tokenizer.encode("1234", false).unwrap().len(), digits, "{model}");
        }
    }
}

/// The bundle is made all the same, and says why it has no tokenizer.
fn without_tokenizer(gguf: &Gguf, reason: &str) {
    let (_bundles, bundle): (_, Bundle) = gguf.prepared();
    assert_eq!(bundle.tokenizer(), None);
    let said = bundle.no_tokenizer().unwrap();
    assert!(said.contains(reason), "{said}");
}

#[test]
fn a_tokenizer_that_cannot_be_built_is_left_out_with_the_reason() {
    without_tokenizer(&Gguf::from_tiny("llama-gqa-tied"), "holds no tokenizer");
    without_tokenizer(&gguf("whitespace"), "\"whitespace\" is not known; known are default, ");
    let with = |key: &str, value: Value| {
        let mut gguf = gguf("smollm");
        put(&mut gguf, key, value);
        gguf
    };
    without_tokenizer(&with("model", Value::String("bert".into())), "bert");
    without_tokenizer(&with("tokens", texts(&["a", "b", "a"])), "token types");
    without_tokenizer(&with("tokens", Value::U32(3)), "not a list");
    without_tokenizer(&with("merges", texts(&["ab", "a zz"])), "no merges");
    let mut bos = with("bos_token_id", Value::U32(5000));
    put(&mut bos, "add_bos_token", Value::Bool(true));
    without_tokenizer(&bos, "5000");
}

#[test]
fn a_directory_without_a_tokenizer_says_so_too() {
    let (_bundles, bundle) = Model::tiny("llama-gqa-tied").prepared();
    assert!(bundle.no_tokenizer().unwrap().contains("no tokenizer.json"));
}

/// Bytes, special tokens, and pieces of which the earlier ones have the better score.
fn sentencepiece() -> Gguf {
    let mut gguf = Gguf::from_tiny("llama-gqa-tied");
    let mut tokens = vec![("<unk>".to_owned(), UNKNOWN), ("<s>".into(), CONTROL), ("</s>".into(), CONTROL)];
    tokens.extend((0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.push(("<tool>".into(), USER_DEFINED));
    let pieces = ["bc", "ab", "▁ab", "▁", "a", "b", "c"];
    let scores = vec![0.0; tokens.len()].into_iter().chain((0..pieces.len()).map(|i| -(i as f32)));
    let scores = scores.map(Value::F32).collect();
    tokens.extend(pieces.map(|piece| (piece.to_owned(), 1)));
    let (tokens, types): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    let values = [
        ("model", Value::String("llama".into())),
        ("pre", Value::String("default".into())),
        ("tokens", texts(&tokens)),
        ("token_type", Value::Array(types.into_iter().map(Value::I32).collect())),
        ("scores", Value::Array(scores)),
        ("bos_token_id", Value::U32(1)),
    ];
    for (key, value) in values {
        put(&mut gguf, key, value);
    }
    gguf
}

#[test]
fn sentencepiece_joins_by_score_and_falls_back_to_bytes() {
    let (_bundles, tokenizer) = tokenizer(&sentencepiece());
    for (text, pieces) in [
        ("abc", &["▁", "a", "bc"][..]),
        ("ab ab", &["▁ab", "▁ab"]),
        ("c é", &["▁", "c", "▁", "<0xC3>", "<0xA9>"]),
        ("", &[]),
    ] {
        let encoding = tokenizer.encode(text, false).unwrap();
        assert_eq!(encoding.get_tokens(), pieces, "{text:?}");
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
    }
    let special = tokenizer.encode("a<tool>", true).unwrap();
    assert_eq!(special.get_tokens(), ["<s>", "▁", "a", "<tool>"]);
    // A space is put before the text unless the file says no.
    let mut gguf = sentencepiece();
    put(&mut gguf, "add_space_prefix", Value::Bool(false));
    let (_bundles, tokenizer) = self::tokenizer(&gguf);
    assert_eq!(tokenizer.encode("ab ab", false).unwrap().get_tokens(), ["ab", "▁ab"]);
}

#[test]
fn sentencepiece_scores_that_say_nothing_make_no_tokenizer() {
    let mut gguf = sentencepiece();
    let count = 3 + 256 + 1 + 7;
    put(&mut gguf, "scores", Value::Array(vec![Value::F32(-1000.0); count]));
    without_tokenizer(&gguf, "all the same");
    put(&mut gguf, "scores", Value::Array(vec![Value::F32(0.0); 3]));
    without_tokenizer(&gguf, "3 scores");
    gguf.metadata.remove("tokenizer.ggml.scores");
    without_tokenizer(&gguf, "tokenizer.ggml.scores");
}

// Ids of 1,000 strings, made once by llama.cpp and transformers: tests/data/README.md.

fn data(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/").to_owned() + name;
    std::fs::read(path).unwrap()
}

fn json(name: &str) -> Json {
    serde_json::from_slice(&data(name)).unwrap()
}

fn strings(value: &Json) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The digest of all ids; those of each input end in a number that is no id.
fn digest<'s>(tokenizer: &Tokenizer, inputs: impl Iterator<Item = EncodeInput<'s>>) -> String {
    let mut hasher = Sha256::new();
    for input in inputs {
        for id in tokenizer.encode(input, true).unwrap().get_ids().iter().chain([&u32::MAX]) {
            hasher.update(id.to_le_bytes());
        }
    }
    bundle::hexadecimal(&hasher.finalize())
}

/// GPT-2's bytes and first merges, some tokens that no merge makes, and an end.
fn gpt2() -> (Vec<String>, Vec<String>) {
    let merges: Vec<String> =
        String::from_utf8(data("merges.txt")).unwrap().lines().map(str::to_owned).collect();
    let (mut tokens, shifted): (Vec<_>, Vec<_>) =
        byte_level().into_iter().partition(|byte| byte.chars().all(|letter| letter < '\u{100}'));
    tokens.extend(shifted);
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(strings(&json("expected.json")["whole"]));
    tokens.push("<|endoftext|>".into());
    (tokens, merges)
}

#[test]
fn every_pre_tokenizer_of_llama_cpp_splits_as_there() {
    let (expected, texts) = (json("expected.json"), strings(&json("texts.json")));
    let (tokens, merges) = gpt2();
    let mut gguf = gguf("");
    put(&mut gguf, "tokens", self::texts(&tokens));
    put(&mut gguf, "merges", self::texts(&merges));
    put(&mut gguf, "add_bos_token", Value::Bool(false));
    gguf.metadata.remove("tokenizer.ggml.token_type");
    let made = |pre: &str| {
        let mut gguf = gguf.clone();
        put(&mut gguf, "pre", Value::String(pre.into()));
        let (_bundles, bundle) = gguf.prepared();
        let bytes = std::fs::read(bundle.tokenizer().unwrap()).unwrap();
        let mut tokenizer: Json = serde_json::from_slice(&bytes).unwrap();
        // llama.cpp composes no characters, and the models' own tokenizers do.
        tokenizer["normalizer"] = Json::Null;
        tokenizer
    };
    let all = expected["pre"].as_object().unwrap();
    assert_eq!(all.len(), 87);
    for (pre, wanted) in all {
        let found = made(pre);
        if let Some(other) = wanted["like"].as_str() {
            let other = made(other);
            assert_eq!(found["pre_tokenizer"], other["pre_tokenizer"], "{pre}");
            assert_eq!(found["model"]["ignore_merges"], other["model"]["ignore_merges"], "{pre}");
            continue;
        }
        let tokenizer = Tokenizer::from_bytes(found.to_string()).unwrap();
        let without: Vec<usize> = serde_json::from_value(wanted["without"].clone()).unwrap_or_default();
        let inputs = texts.iter().enumerate().filter(|(place, _)| !without.contains(place));
        let ids = digest(&tokenizer, inputs.map(|(_, text)| text.as_str().into()));
        assert_eq!(ids, wanted["ids"].as_str().unwrap(), "{pre}");
    }
}

/// A directory with the files of a tokenizer, but no tokenizer.json.
fn directory(files: &str, config: &Json) -> TempDir {
    let directory = Model::tiny("llama-gqa-tied").write();
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    let byte_level = |tokens: &[String]| {
        let ids = tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into()));
        write("vocab.json", Json::Object(ids.collect()).to_string().as_bytes());
        write("merges.txt", &[b"#version: 0.2\n", &data("merges.txt")[..]].concat());
    };
    let roberta = ["<s>", "<pad>", "</s>", "<unk>"].map(str::to_owned);
    match files {
        "words" => write("vocab.txt", &data("vocab.txt")),
        "mpnet" => {
            write("vocab.txt", &[b"<s>\n<pad>\n</s>\n<unk>\n", &data("vocab.txt")[..], b"<mask>\n"].concat());
        }
        "gpt2" => byte_level(&gpt2().0),
        "roberta" => {
            let (mut tokens, _) = gpt2();
            *tokens.last_mut().unwrap() = "<mask>".to_owned();
            byte_level(&[&roberta[..], &tokens].concat());
        }
        model if config["tokenizer_class"] == "XLMRobertaTokenizer" => {
            write("sentencepiece.bpe.model", &data(&format!("{model}.model")));
        }
        model => write("tokenizer.model", &data(&format!("{model}.model"))),
    }
    write("tokenizer_config.json", config.to_string().as_bytes());
    directory
}

#[test]
fn files_that_came_before_tokenizer_json_give_the_ids_of_transformers() {
    let (expected, texts) = (json("expected.json"), strings(&json("texts.json")));
    for case in expected["files"].as_array().unwrap() {
        let source = directory(case["files"].as_str().unwrap(), &case["config"]);
        let (_bundles, bundle) = prepared_at(&source);
        let path = bundle.tokenizer().unwrap_or_else(|| panic!("{case}: {:?}", bundle.no_tokenizer()));
        let tokenizer = Tokenizer::from_file(path).unwrap();
        let ids = digest(&tokenizer, texts.iter().map(|text| text.as_str().into()));
        assert_eq!(ids, case["ids"].as_str().unwrap(), "{case}");
        let pairs = texts.iter().zip(&texts[1..]).map(|(a, b)| (a.as_str(), b.as_str()).into());
        assert_eq!(digest(&tokenizer, pairs), case["pairs"].as_str().unwrap(), "pairs of {case}");
    }
}

#[test]
fn files_of_a_tokenizer_that_are_not_read_are_named_with_what_to_do() {
    for (class, reason) in [
        ("BertTokenizer", "vocab.txt: it has no line \"[UNK]\""),
        ("BertJapaneseTokenizer", "\"BertJapaneseTokenizer\" are not read; make a tokenizer.json"),
        ("LlamaTokenizerFast", "needs tokenizer.model, and there is only vocab.txt; make"),
    ] {
        let source = directory("words", &serde_json::json!({ "tokenizer_class": class }));
        std::fs::write(source.path().join("vocab.txt"), "a\nb\n").unwrap();
        let (_bundles, bundle) = prepared_at(&source);
        let said = bundle.no_tokenizer().unwrap();
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn an_encoder_has_the_ends_that_tokenizer_config_json_names_and_a_decoder_those_of_tokenizer_json() {
    let added = [("<s>", 1), ("</s>", 2)].map(|(token, id)| {
        serde_json::json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": added, "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": { "a": 0, "<s>": 1, "</s>": 2 }, "unk_token": "a" }
    });
    for (model, class, ids) in [
        ("../encoders/bert", "LlamaTokenizerFast", &[1, 0, 2][..]),
        ("../encoders/bert", "PreTrainedTokenizerFast", &[0]),
        ("llama-gqa-tied", "LlamaTokenizer", &[0]),
    ] {
        let source = Model::tiny(model).write();
        let write = |name: &str, value: &Json| {
            std::fs::write(source.path().join(name), value.to_string()).unwrap();
        };
        write("tokenizer.json", &tokenizer);
        let end = serde_json::json!({ "content": "</s>" });
        let said = serde_json::json!({
            "tokenizer_class": class, "add_eos_token": true, "bos_token": "<s>", "eos_token": end
        });
        write("tokenizer_config.json", &said);
        let (_bundles, bundle) = prepared_at(&source);
        let tokenizer = Tokenizer::from_file(bundle.tokenizer().unwrap()).unwrap();
        assert_eq!(tokenizer.encode("a", true).unwrap().get_ids(), ids, "{model}, {class}");
    }
}
