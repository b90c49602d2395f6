//! Weights files that were derived from the bundle's, for references that cannot read a bundle (rule R1).

use super::Judged;
use facts::run::{DerivedWeights, Run};

/// An objection to the weights of a run that loaded no file of the bundle. There is none if the file was
/// derived, number by number, from the bundle's file of the compared precision, and has not changed since.
pub(super) fn objection(judged: &Judged<'_>, run: &Run) -> Option<String> {
    let found = &judged.weights_sha256(run)?;
    let unknown = || format!("its weights have sha256 {found}, which no file of the bundle has");
    if !judged.is_reference(&run.framework) {
        return Some(unknown());
    }
    let source = &judged.manifest.source.sha256;
    if let Some((name, _)) = source.iter().find(|(_, sha256)| *sha256 == found) {
        return Some(format!("its weights are the source's own, {name}, not the bundle's"));
    }
    let Some(record) = &run.derived else { return Some(unknown()) };
    let DerivedWeights { from, by, .. } = record;
    let asked = judged.plan.contenders.iter().find(|contender| contender.label == run.framework)?;
    if record.sha256 != *found {
        return Some(format!(
            "its weights, derived from {from}, were changed since: their sha256 is {found}"
        ));
    }
    if judged.manifest.files.get(from.as_str()).is_none_or(|file| file.sha256 != record.from_sha256) {
        return Some(format!("its weights were derived from another {from}"));
    }
    if !record.same_values || *from != asked.precision.file_name() {
        return Some(format!(
            "its weights are {by}'s own, made from {from}: not the numbers that the others use"
        ));
    }
    None
}

/// The origin of derived weights, in words.
pub(super) fn note(judged: &Judged<'_>, label: &str) -> Option<String> {
    let run = judged.runs_of(label).next()?;
    if !judged.is_reference(label) || objection(judged, run).is_some() {
        return None;
    }
    let DerivedWeights { from, by, .. } = run.derived.as_ref()?;
    Some(format!("its weights are derived from the bundle's {from} by {by}, number by number"))
}
