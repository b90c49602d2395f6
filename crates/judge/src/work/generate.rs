//! Continuation, token by token.

use facts::agreement::TokenAgreement;
use facts::run::Run;
use history::Case;
use plan::Contender;
use plan::work::Generate;
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

/// What timed requests chose at every step. Drawn tokens do not count, because no engine chose them.
pub(super) fn tokens(work: &Generate, reference: &Reference, run: &Run, tie: f32) -> TokenAgreement {
    match work.decode {
        Decode::Sampled(_) => TokenAgreement::default(),
        Decode::Forced | Decode::Greedy => parity::chosen(reference, run, tie, work.decode == Decode::Forced),
    }
}

/// A case with how a contender keeps keys and values: in what, if that does not follow the weights.
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
    Case {
        context: work.context,
        decode: decode.to_owned(),
        autoregressive: work.autoregressive,
        ..Case::default()
    }
}
