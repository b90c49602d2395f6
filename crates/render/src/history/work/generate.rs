//! Continuation, token by token.

use ::history::{Case, Record};
use serde_json::{Value, json};

/// The prompt and the way it is continued, by name.
pub(in super::super) fn fields(case: &Case) -> [(&'static str, Value); 5] {
    let prompt_tokens: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    [
        ("context", json!(case.context)),
        ("prompt_tokens", json!(prompt_tokens.join("+"))),
        ("new_tokens", json!(case.new_tokens)),
        ("decode", json!(case.decode)),
        ("kv_cache", json!(case.kv_cache)),
    ]
}

/// The number of new tokens, as scripts of this field name it.
pub(in super::super) fn generated_length(case: &Case) -> (&'static str, Value) {
    ("generated_length", json!(case.new_tokens))
}

/// Whether there was a KV cache.
pub(in super::super) fn has_cache(record: &Record) -> bool {
    record.case.kv_cache != "off"
}

#[cfg(test)]
mod tests {
    use judge::regression::testing::record;

    use super::*;

    #[test]
    fn records_that_do_not_tell_had_a_cache() {
        let mut record = record("tch", 40.0);
        for (told, expected) in [("on", true), ("", true), ("off", false)] {
            record.case.kv_cache = told.into();
            assert_eq!(has_cache(&record), expected, "{told:?}");
        }
    }
}
