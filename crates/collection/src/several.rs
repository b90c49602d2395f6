//! Faults that only several entries together show: a run that was submitted twice, and a model other than the
//! one of its name.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use judge::records::collection::{Published, Tier};

use crate::problem::Problem;

/// Entries of one run have a tenth of their timed requests or more in common, to the nanosecond. Separate
/// runs occasionally share one, where a request has a single mark.
const COMMON: usize = 10;

/// The faults of entries among themselves.
pub(crate) fn check(entries: &[Published]) -> Vec<Problem> {
    duplicates(entries).into_iter().chain(other_weights(entries)).collect()
}

fn duplicates(entries: &[Published]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut owners: HashMap<u64, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let requests = requests(entry);
        let mut common: BTreeMap<usize, usize> = BTreeMap::new();
        for request in &requests {
            match owners.get(request) {
                Some(owner) if *owner != place => *common.entry(*owner).or_default() += 1,
                _ => drop(owners.insert(*request, place)),
            }
        }
        let earlier = entries[..place].iter().position(|other| {
            let [one, other] =
                [entry, other].map(|entry| (&entry.report.environment.started, entry.report.plan.seed));
            one == other
        });
        let shared = common.into_iter().find(|(_, count)| count * COMMON >= requests.len());
        if let Some(owner) = shared.map(|(owner, _)| owner).or(earlier) {
            problems.push(Problem::new(
                &entry.name,
                measure::saved::SAMPLES,
                format!("it is the run of {}", entries[owner].name),
                "remove one of the two",
            ));
        }
    }
    problems
}

/// The marks of every timed request, hashed with the contender's label.
fn requests(entry: &Published) -> Vec<u64> {
    let runs = entry.evidence.runs.iter().chain(&entry.evidence.repeated);
    let turns = runs.flat_map(|run| run.turns.iter().map(|turn| (&run.framework, &turn.sample.marks_ns.0)));
    turns
        .map(|request| {
            let mut hasher = DefaultHasher::new();
            request.hash(&mut hasher);
            hasher.finish()
        })
        .collect()
}

/// The same name, precision and layout mean the same bytes. The entry that defines them is the first of ours,
/// or else the oldest.
fn other_weights(entries: &[Published]) -> Vec<Problem> {
    let mut sorted: Vec<&Published> = entries.iter().collect();
    sorted.sort_by_key(|entry| (entry.tier != Tier::Ours, entry.report.environment.started.clone()));
    let mut known: HashMap<(&str, u32, &str), (&str, &str)> = HashMap::new();
    let mut problems = Vec::new();
    for entry in sorted {
        let manifest = &entry.report.model.manifest;
        for (file, record) in manifest.files.iter().filter(|(file, _)| file.ends_with(".safetensors")) {
            let key = (entry.report.model.name.as_str(), manifest.format, file.as_str());
            let (owner, sha256) = known.entry(key).or_insert((&entry.name, &record.sha256));
            if record.sha256 != *sha256 {
                problems.push(Problem::new(
                    &entry.name,
                    measure::saved::PLAN,
                    format!(
                        "{file} of {} has sha256 {}, and in {owner} it has {sha256}",
                        key.0, record.sha256
                    ),
                    "prepare the model of that name again, or give yours a name of its own",
                ));
            }
        }
    }
    problems
}
