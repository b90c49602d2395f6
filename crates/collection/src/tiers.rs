//! `tiers.toml`: statements of the collection's maintainers about its entries.

use std::collections::BTreeMap;
use std::path::Path;

use judge::records::collection::{Published, Tier};
use judge::records::{self, fingerprint};
use judge::report::verdicts::Comparison;
use judge::{Metric, Report};
use serde::Deserialize;

use crate::problem::Problem;

pub(crate) const TIERS: &str = "tiers.toml";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tiers {
    /// Entries that this project measured.
    ours: Vec<String>,
    /// Entries, each with the one from another machine that agrees with it.
    reproduced: BTreeMap<String, String>,
    /// Entries that were accepted under earlier rules, each with the sha256 of its `SHA256SUMS` at that time.
    pub(crate) retired: BTreeMap<String, String>,
}

/// The file of this collection; empty if there is none.
pub(crate) fn read(directory: &Path) -> Result<Tiers, Problem> {
    let refused = |what: String| Problem::new(TIERS, "", what, "correct the file");
    match untrusted::file::read_text(&directory.join(TIERS), untrusted::file::CONFIG) {
        Ok(text) => toml::from_str(&text).map_err(|error| refused(error.message().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Tiers::default()),
        Err(error) => Err(refused(format!("it cannot be read: {error}"))),
    }
}

impl Tiers {
    pub(crate) fn tier(&self, entry: &str) -> Tier {
        match self.reproduced.get(entry) {
            _ if self.ours.iter().any(|ours| ours == entry) => Tier::Ours,
            Some(by) => Tier::Reproduced { by: by.clone() },
            None => Tier::Community,
        }
    }

    /// Wrong statements of the file about entries.
    pub(crate) fn check(&self, entries: &[Published]) -> Vec<Problem> {
        let find = |name: &str| entries.iter().find(|entry| entry.name == name);
        let named = self.ours.iter().chain(self.retired.keys()).chain(self.reproduced.keys());
        let unknown = named.chain(self.reproduced.values()).filter(|name| find(name).is_none());
        let unknown = unknown.map(|name| {
            let what = format!("it names {name}, which is no entry that passed its check");
            Problem::new(TIERS, "", what, "take the name out, or correct the entry")
        });
        let repeated = self.reproduced.iter().filter_map(|(name, by)| Some((find(name)?, find(by)?)));
        let wrong = repeated.filter_map(|(entry, by)| {
            let why = objection(&entry.report, &by.report)?;
            let what = format!("{} does not reproduce {}: {why}", by.name, entry.name);
            Some(Problem::new(TIERS, "", what, "take the line out of [reproduced]"))
        });
        unknown.chain(wrong).collect()
    }
}

/// Why a run does not reproduce another: it does if another machine computed the same case with the same
/// versions, and every verdict's interval in the deciding metric overlaps that of the same pair.
fn objection(first: &Report, second: &Report) -> Option<String> {
    if fingerprint(&first.environment) == fingerprint(&second.environment) {
        return Some("both are from machines of one make".into());
    }
    let cases = [first, second].map(|report| records::records(report, None));
    let [Some(case), Some(other)] =
        [&cases[0], &cases[1]].map(|records| records.first().map(|record| &record.case))
    else {
        return Some("one of them has no contender".into());
    };
    if case.weights_sha256 != other.weights_sha256 || case.weights_sha256.is_none() {
        return Some("their models are not the same".into());
    }
    if records::case::in_full(case) != records::case::in_full(other) {
        return Some(format!(
            "one computed {}, the other {}",
            records::case::in_full(case),
            records::case::in_full(other)
        ));
    }
    let metric = Metric::deciding(first.plan.work.kind());
    let mut compared = first.comparisons.iter().filter(|found| found.metric == metric).peekable();
    if compared.peek().is_none() {
        return Some("it compares nothing".into());
    }
    compared.find_map(|found| {
        let pair = format!("{} and {}", found.a, found.b);
        let Some(other) =
            second.comparisons.iter().find(|other| other.metric == metric && is_pair(other, found))
        else {
            return Some(format!("it does not compare {pair}"));
        };
        for label in [&found.a, &found.b] {
            let versions = [first, second].map(|report| versions(report, label));
            if versions[0] != versions[1] {
                return Some(format!("its {label} is of another version"));
            }
        }
        // The same direction in both: how many times better `found.a` is.
        let turned = other
            .interval
            .map(|(low, high)| if other.a == found.a { (low, high) } else { (1.0 / high, 1.0 / low) });
        match found.interval.zip(turned) {
            None => Some(format!("{pair} have no interval in one of them")),
            Some(((low, high), (least, most))) if high < least || most < low => {
                Some(format!("the intervals of {pair} do not overlap"))
            }
            Some(_) => None,
        }
    })
}

fn is_pair(one: &Comparison, other: &Comparison) -> bool {
    (&one.a, &one.b) == (&other.a, &other.b) || (&one.a, &one.b) == (&other.b, &other.a)
}

fn versions(report: &Report, label: &str) -> Option<(String, String)> {
    let row = report.rows.iter().find(|row| row.framework == label)?;
    let hello = row.hello.as_ref()?;
    Some((hello.library.to_string(), hello.binding.to_string()))
}
