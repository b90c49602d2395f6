//! How contenders keep keys and values.

use facts::run::Run;

use crate::report::fairness::Judged;

pub(in super::super) fn same_policy(judged: &Judged<'_>, label: &str) -> Option<String> {
    judged.same_for_all(label, "its KV cache", |run| Some(run.loaded()?.in_effect.cache.policy.clone()))
}

/// Compared with the request for the contender: in studies of the weights' precision, the cache's may follow.
pub(in super::super) fn same_precision(judged: &Judged<'_>, label: &str) -> Option<String> {
    let asked = judged.plan.contender(label)?.asked_cache()?.name();
    let kept = |run: &&Run| run.loaded().is_none_or(|loaded| loaded.in_effect.cache.policy != "none");
    let mut runs = judged.runs_of(label).filter(kept);
    runs.find_map(|run| {
        let observed = run.loaded()?.in_effect.cache.precision.as_str();
        (observed != asked).then(|| format!("its KV cache is asked to be {asked}, and is {observed}"))
    })
}
