//! Tokenizers with SentencePiece tables, which XLM-RoBERTa and other multilingual encoders have.

use base64::prelude::{BASE64_STANDARD, Engine};
use comparison::plan;
use comparison::plan::prompts::Text;
use serde_json::json;

/// The ids of "b a" by a tokenizer with these tables.
fn encoded(tables: &[u8]) -> plan::Result<Vec<u32>> {
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
