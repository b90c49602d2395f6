//! `--batch max`: the largest batch that fits into memory. Workers compute small batches, each in a process
//! of its own. The memory of more sequences is extrapolated, corrected at a quarter of the resulting batch,
//! and the batch itself is computed once: an allocator that doubles its arena needs more than any line
//! through small batches. A worker that does not fit is stopped by its own limit, and a smaller batch is
//! tried.

use std::collections::BTreeMap;

use bundle::{Bundle, Precision};
use comparison::facts::run::RunFailure;
use comparison::plan::workers::gigabytes;
use comparison::plan::{Contender, Failure, KvPrecision, Plan, Result, WorkKind};
use protocol::{Event, Measure, Task, Warmup};

use crate::measure::crew::Crew;
use crate::measure::machine::readings;
use crate::measure::places::Places;
use crate::measure::progress;

/// The limit of `--batch`.
const LARGEST: usize = 4096;
/// Batches that are computed first.
const FIRST: [usize; 2] = [1, 4];
/// Share of the memory that stays free for this program and the system.
const FREE: f64 = 0.06;
/// Share of the available memory within which the batch is tried. Less is left when the run starts, because
/// the weights are in the page cache by then (2.84 GB fell to 2.45 in a group of 3 GB), and allocators
/// reserve more than they touch.
const TRIED: f64 = 0.8;
/// Copies of the logits for parity that may exist at once: two in the worker, its file, and the reference's
/// here.
const COPIES_OF_LOGITS: f64 = 4.0;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Largest {
    pub(crate) batch: usize,
    /// Peak of each contender's worker at that size in bytes, by label.
    pub(crate) expected: BTreeMap<String, u64>,
    /// For people.
    pub(crate) words: String,
}

/// Rejects plans for which a search makes no sense.
pub(crate) fn check(plan: &Plan) -> Result<()> {
    let refused = |why: &str| Err(Failure::usage(format!("--batch max {why}: name a size")));
    match plan.work.kind() {
        _ if plan.device != "cpu" => refused("searches main memory, and not that of a GPU"),
        WorkKind::TokenByToken | WorkKind::OneToken => Ok(()),
        _ => refused(
            "is for prompts that are continued token by token by one caller, and these requests have no such batch",
        ),
    }
}

/// Searches. `plan_of` makes the plan of a size.
pub(crate) fn find(
    (bundle, places, quiet): (&Bundle, &Places, bool),
    memory_gb: Option<f64>,
    plan_of: impl Fn(usize) -> Result<Plan>,
) -> Result<Largest> {
    let Some((available, limit)) = readings::main_memory() else {
        return Err(Failure::usage("--batch max: the system does not report the free memory: name a size"));
    };
    let (available, limit) = match memory_gb.map(|gb| (gb * 1e9) as u64) {
        Some(asked) if asked < available => (asked, "--memory"),
        _ => (available, limit),
    };
    let mut search = Search { places, quiet, bundle, plan_of: &plan_of, points: BTreeMap::new() };
    for batch in FIRST {
        search.measured(batch)?;
    }
    let plan = plan_of(FIRST[0])?;
    let logits =
        4 * plan.work.prompted().map_or(0, |prompted| prompted.new_tokens + 1) * bundle.config().vocab_size;
    let budget = |batch: usize| {
        let judged = plan_of(batch).map_or(1, |plan| plan.work.judged_sequences());
        (1.0 - FREE) * available as f64 - COPIES_OF_LOGITS * (judged * logits) as f64
    };
    let mut found = search.largest(&budget)?;
    let quarter = found / 4;
    let mut proven = FIRST[1];
    if quarter > FIRST[1] {
        search.measured(quarter)?;
        if search.fits(quarter, &budget) {
            proven = quarter;
        }
        found = search.largest(&budget)?;
    }
    // It must also run to its end within the memory that --memory leaves.
    while found > proven && (search.measure(found, TRIED)?.is_some() || !search.fits(found, &budget)) {
        found = smaller(found, proven);
    }
    Ok(search.told(found, (available, limit)))
}

/// One kind of worker that a comparison starts.
type Key = (String, Precision);

struct Search<'a, F> {
    places: &'a Places,
    quiet: bool,
    bundle: &'a Bundle,
    plan_of: &'a F,
    /// Peaks in bytes by batch, of each kind of worker.
    points: BTreeMap<Key, Vec<(usize, f64)>>,
}

impl<F: Fn(usize) -> Result<Plan>> Search<'_, F> {
    /// Measures every worker at this size, which must fit.
    fn measured(&mut self, batch: usize) -> Result<()> {
        self.measure(batch, 1.0)?
            .map_or(Ok(()), |failed| Err(Failure::failed(format!("--batch max: {failed}"))))
    }

    /// Measures every worker at this size within a share of the memory, and the reference's. `Some` names the
    /// one that did not compute it, and the reason.
    fn measure(&mut self, batch: usize, share: f64) -> Result<Option<String>> {
        let plan = (self.plan_of)(batch)?;
        let mut crew = Crew::new(&plan, self.bundle, &self.places.on(&plan.device), self.quiet)?;
        crew.workers.iter_mut().for_each(|worker| worker.memory_share = share);
        for (index, contender) in plan.contenders.iter().enumerate() {
            let mut precisions = vec![contender.precision];
            let of_reference = crew.reference_precision();
            if index == 0 && of_reference != contender.precision {
                precisions.push(of_reference);
            }
            for precision in precisions {
                crew.progress.message(&format!("--batch max: {} with {batch} sequences", contender.label));
                let contender = with_precision(contender, precision);
                match peak(&crew, index, &contender) {
                    Ok(bytes) => {
                        let key = (contender.label.clone(), precision);
                        self.points.entry(key).or_default().push((batch, bytes as f64));
                    }
                    Err(_) if progress::requested() => return Err(Failure::Interrupted),
                    // Its row gives the reason later, whatever the size.
                    Err(reason) if batch == FIRST[0] => {
                        protocol::say!("--batch max leaves {} out: {reason}", contender.label);
                    }
                    // A worker that was left out is left out at every size.
                    Err(_) if !self.points.contains_key(&(contender.label.clone(), precision)) => {}
                    Err(reason) => {
                        let label = &contender.label;
                        crew.progress.done();
                        return Ok(Some(format!("{label} did not compute a batch of {batch}: {reason}")));
                    }
                }
            }
        }
        crew.progress.done();
        match self.points.is_empty() {
            false => Ok(None),
            true => Err(Failure::failed("--batch max: no framework computed a batch of 1")),
        }
    }

    /// Whether each worker alone fits at this size.
    fn fits(&self, batch: usize, budget: &impl Fn(usize) -> f64) -> bool {
        self.points.values().all(|points| expected(points, batch) <= budget(batch))
    }

    /// The largest size at which each worker alone fits.
    fn largest(&self, budget: &impl Fn(usize) -> f64) -> Result<usize> {
        let fits = |batch: usize| self.fits(batch, budget);
        if !fits(1) {
            return Err(Failure::usage(
                "--batch max: not even one sequence fits into memory: take a smaller model",
            ));
        }
        let (mut least, mut most) = (1, LARGEST + 1);
        while least + 1 < most {
            let middle = usize::midpoint(least, most);
            *if fits(middle) { &mut least } else { &mut most } = middle;
        }
        Ok(least)
    }

    fn told(&self, batch: usize, (available, limit): (u64, &str)) -> Largest {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let (mut label, mut needed, mut sizes) = ("", 0.0, Vec::new());
        for ((of, _), points) in &self.points {
            let bytes = expected(points, batch);
            let most = all.entry(of.clone()).or_default();
            *most = (*most).max(bytes as u64);
            if bytes >= needed {
                (label, needed) = (of, bytes);
                sizes = points.iter().map(|(size, _)| size.to_string()).collect();
            }
        }
        let (there, needed, sizes) =
            (gigabytes(available.into()), gigabytes(needed as u128), sizes.join(", "));
        let why = match batch {
            LARGEST => format!("the bound of {LARGEST} and not memory limits it"),
            _ => format!(
                "more would not fit into {limit}, {there}, of which some is kept for parity and the system"
            ),
        };
        let words = format!(
            "--batch max: {batch} sequences; {why}; {label} is to take {needed}, by batches of {sizes}"
        );
        Largest { batch, expected: all, words }
    }
}

/// The batch to try after one that did not fit, above one that did.
fn smaller(failed: usize, proven: usize) -> usize {
    (failed - failed.div_ceil(6)).max(proven)
}

/// The memory of a worker at this size, by the line through the two largest sizes.
fn expected(points: &[(usize, f64)], batch: usize) -> f64 {
    let [.., (a, at_a), (b, at_b)] = *points else {
        return points.first().map_or(0.0, |&(_, bytes)| bytes);
    };
    let slope = ((at_b - at_a) / (b as f64 - a as f64)).max(0.0);
    at_b + slope * (batch as f64 - b as f64)
}

fn with_precision(contender: &Contender, precision: Precision) -> Contender {
    let mut changed = Contender { precision, ..contender.clone() };
    if precision != contender.precision {
        changed.cache.precision = KvPrecision::F32;
    }
    changed
}

/// The peak of a worker that computes a request three times: at its cold start, to warm up, and timed.
fn peak(crew: &Crew<'_>, index: usize, contender: &Contender) -> std::result::Result<u64, String> {
    let warmup =
        Warmup { min_iterations: 1, max_iterations: 1, max_ns: 0, settled_within: 1.0, from_cold: false };
    let work = crew.plan.work.asked(contender.cache.policy, &crew.plan.work.fallback_outputs());
    let task = Task::Measure(Measure { work, warmup, lead_in: 0, load: None });
    let mut running = crew.workers[index].start(&crew.job(contender, task), None);
    if running.warm_up(1) && running.request(0, None).is_some() {
        running.ask_to_finish(protocol::Finish::default());
    } else {
        running.finish();
    }
    let outcome = running.end();
    if let Some(failure) = RunFailure::from_ending(outcome.ending) {
        return Err(failure.sentence());
    }
    let peak = outcome.events.iter().find_map(|event| match event {
        Event::Usage(usage) => usage.peak_bytes,
        _ => None,
    });
    peak.ok_or_else(|| "it does not report its peak memory".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_more_sequences_take_follows_from_the_two_largest_sizes() {
        let points = [(1, 900.0), (4, 1000.0), (24, 1200.0)];
        assert_eq!(expected(&points, 124), 2200.0);
        assert_eq!(expected(&points[..1], 124), 900.0, "one size has no slope");
        assert_eq!(expected(&[(1, 900.0), (4, 890.0)], 100), 890.0, "memory does not shrink");
    }

    #[test]
    fn a_batch_that_does_not_fit_is_followed_by_smaller_ones_down_to_one_that_did() {
        let tried =
            std::iter::successors(Some(84), |&failed| Some(smaller(failed, 20)).filter(|_| failed > 20));
        assert_eq!(tried.collect::<Vec<_>>(), [84, 70, 58, 48, 40, 33, 27, 22, 20]);
    }
}
