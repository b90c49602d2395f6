//! Continuation, token by token.

use facts::agreement::TokenAgreement;
use facts::run::Run;
use history::Case;
use plan::work::Generate;
use plan::{Axis, Contender, Request};
use protocol::Decode;

use super::Selection;
use crate::metric::Metric::*;
use crate::parity::{self, Reference};

pub(super) const TOKENS: Selection =
    Selection { replaced: &[], replaces_in_tables: true, follows: &[(Latency, Throughput)] };

/// Requests for one token, which decode nothing.
pub(super) const ONE_TOKEN: Selection = Selection {
    replaced: &[(Latency, FirstToken), (Throughput, PrefillThroughput)],
    replaces_in_tables: false,
    follows: &[(FirstToken, PrefillThroughput), (Total, PrefillThroughput)],
};

/// The choices of timed requests at every step. Drawn tokens do not count, because no engine chose them.
pub(super) fn tokens(work: &Generate, reference: &Reference, run: &Run, tie: f32) -> TokenAgreement {
    match work.decode {
        Decode::Sampled(_) => TokenAgreement::default(),
        Decode::Forced | Decode::Greedy => parity::chosen(reference, run, tie, work.decode == Decode::Forced),
    }
}

/// A case with the contender's setting for keys and values: their type, if that does not follow the weights.
pub(super) fn with_cache(case: Case, contender: &Contender) -> Case {
    let asked = contender.cache.precision.filter(|asked| !asked.is_auto());
    Case {
        kv_cache: if contender.cache.is_on() { "on" } else { "off" }.to_owned(),
        kv_precision: asked.map_or_else(String::new, |asked| asked.name().to_owned()),
        ..case
    }
}

pub(super) fn case(work: &Generate) -> Case {
    let decode = match work.decode {
        Decode::Forced => "forced",
        Decode::Greedy => "greedy",
        Decode::Sampled(_) => "sampled",
    };
    let chunk = work.prefill_chunk.map(|tokens| (CHUNK.to_owned(), tokens.into()));
    let mixed = work.prompted.mixed.as_deref().map(|lengths| (MIXED.to_owned(), lengths.into()));
    Case {
        context: work.context,
        decode: decode.to_owned(),
        autoregressive: work.autoregressive,
        other: chunk.into_iter().chain(mixed).collect(),
        ..Case::default()
    }
}

/// Tokens of a prompt that are read at once, in a record.
const CHUNK: &str = "prefill_chunk";
/// The lengths of prompts that are one batch, in a record.
const MIXED: &str = "mixed";

/// The size of a case, for people: prompt lengths, and new tokens if there are any: "12+34 → 32".
pub(crate) fn size(case: &Case) -> String {
    let prompts: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    match case.new_tokens {
        0 => format!("{} tokens", prompts.join("+")),
        new_tokens => format!("{} → {new_tokens}", prompts.join("+")),
    }
}

/// Unusual settings of a case, for people.
pub(crate) fn unusual(case: &Case) -> Vec<String> {
    let decode = Some(&case.decode).filter(|decode| !["", "forced"].contains(&decode.as_str()));
    let precision = Some(&case.kv_precision).filter(|precision| !precision.is_empty());
    let chunk = case.other.get(CHUNK);
    let mixed = case.other.get(MIXED).and_then(|lengths| lengths.as_str());
    let all = [
        decode.cloned(),
        chunk.map(|tokens| format!("prompts in chunks of {tokens}")),
        mixed.map(|lengths| format!("prompts of {lengths} in one batch")),
        (case.kv_cache == "off").then(|| "no KV cache".to_owned()),
        precision.map(|precision| format!("KV cache in {precision}")),
    ];
    all.into_iter().flatten().collect()
}

/// The same case with keys and values kept.
pub(crate) fn with_cache_on(case: Case) -> Case {
    Case { kv_cache: "on".to_owned(), ..case }
}

/// A case of so many new tokens, fed given tokens.
pub(crate) fn forced(new_tokens: usize) -> Case {
    with_cache_on(Case { new_tokens, decode: "forced".to_owned(), ..Case::default() })
}

/// The flag of new tokens, with their number in a case and the requested numbers.
pub(crate) fn tokens_asked<'a>(case: &Case, asked: &'a Request) -> (&'static str, usize, &'a [u32]) {
    (Axis::NewTokens.flag(), case.new_tokens, &asked.new_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_by_its_tokens_and_what_is_not_as_usual() {
        let case = Case { prompt_tokens: vec![4, 9], ..forced(8) };
        assert_eq!((size(&case).as_str(), unusual(&case)), ("4+9 → 8", Vec::new()));
        let greedy = Case { decode: "greedy".into(), kv_cache: "off".into(), ..case.clone() };
        assert_eq!(unusual(&greedy), ["greedy", "no KV cache"]);
        assert_eq!(unusual(&Case { kv_precision: "bf16".into(), ..case }), ["KV cache in bf16"]);
    }

    #[test]
    fn other_tokens_are_seen_in_what_is_asked_for() {
        let asked = Request { new_tokens: vec![8], ..Request::default() };
        assert_eq!(tokens_asked(&forced(32), &asked), ("--new-tokens", 32, &[8][..]));
    }
}
