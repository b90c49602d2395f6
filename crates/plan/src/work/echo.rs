//! A toy that tests how a kind of work is added: requests return their own bytes. Only the mock engine
//! supports it.

use protocol::{EchoWork, KvCache, Output, Sample};
use serde::{Deserialize, Serialize};

use super::{Describe, Proof, WorkKind};

/// Bytes to return, a case each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    pub cases: Vec<Bytes>,
}

/// The bytes of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Echo {
    /// Cases of so many bytes, drawn by the seed.
    pub(super) fn new(sizes: &[u32], seed: u64) -> Echo {
        let byte =
            |place: u32| (seed.wrapping_add(place.into()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        let case =
            |&size: &u32| Bytes { name: format!("{size} bytes"), bytes: (0..size).map(byte).collect() };
        Echo { cases: sizes.iter().map(case).collect() }
    }
}

impl Describe for Echo {
    fn kind(&self) -> WorkKind {
        WorkKind::Echo
    }

    fn cases(&self) -> usize {
        self.cases.len()
    }

    fn case_name(&self, case: usize) -> &str {
        self.cases.get(case).map_or("", |case| &case.name)
    }

    fn case_noun(&self) -> &'static str {
        "case"
    }

    fn case_tokens(&self, case: usize) -> usize {
        self.cases.get(case).map_or(0, |case| case.bytes.len())
    }

    fn batch(&self) -> usize {
        1
    }

    fn words(&self) -> String {
        let names: Vec<&str> = self.cases.iter().map(|case| case.name.as_str()).collect();
        format!("requests that return {}", names.join(" and "))
    }

    fn mark_noun(&self) -> &'static str {
        "answer"
    }

    fn asked(&self, _: KvCache, _: &[Output]) -> protocol::Work {
        self.of_reference()
    }

    fn of_reference(&self) -> protocol::Work {
        protocol::Work::Echo(EchoWork { cases: self.cases.iter().map(|case| case.bytes.clone()).collect() })
    }

    fn is_whole(&self, _: usize, output: &Output) -> bool {
        matches!(output, Output::Bytes(_))
    }

    fn has_all_sequences(&self, _: &Sample) -> bool {
        true
    }

    fn is_done(&self, sample: &Sample) -> bool {
        sample.marks_ns.len() == 1 && self.is_whole(sample.case, &sample.output)
    }

    fn proof(&self) -> Proof {
        Proof::NotSent
    }
}
