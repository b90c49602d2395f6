//! The choice of a schedule: turns of all, in groups, or one after another.

use bundle::ModelConfig;

use crate::{Contender, Failure, Request, Result, Schedule, ScheduleAsked, workers};

/// Labels of contenders that are measured together.
pub(crate) type Groups = Vec<Vec<String>>;

/// The schedule, its groups, and the reason for it if it is not the default. `sequences`: how many there are
/// at once, and their longest in tokens; `machine`: bytes of memory that a process can use, where the system
/// reports it.
pub(crate) fn choose(
    request: &Request,
    contenders: &[Contender],
    config: &ModelConfig,
    sequences: (usize, usize),
    machine: Option<u64>,
) -> Result<(Schedule, Groups, Option<String>)> {
    let sequential = |why: Option<String>| Ok((Schedule::Sequential, Groups::new(), why));
    if contenders.len() < 2 {
        return sequential(None);
    }
    if request.schedule == ScheduleAsked::Sequential {
        return sequential(Some("--schedule sequential".to_owned()));
    }
    let asked = request.memory_gb.map(|gigabytes| (gigabytes * 1e9) as u64);
    let available = [machine, asked].into_iter().flatten().min();
    let together = available.filter(|_| !request.is_on_gpu()).map(|available| {
        let kinds = contenders.iter().map(|contender| {
            let kind = workers::Kind::new(&contender.engine, contender.precision);
            (contender.precision, contender.cache.precision.unwrap_or_default(), kind)
        });
        let kinds: Vec<_> = kinds.collect();
        workers::Together::new(config, &kinds, sequences, available)
    });
    let obstacle = match (&together, request.is_on_gpu()) {
        // On a GPU, an explicit --schedule interleaved skips the check of memory.
        (_, true) if request.schedule == ScheduleAsked::Interleaved => None,
        (_, true) => Some("how much of a GPU's memory each takes is not known before".to_owned()),
        (Some(together), false) => together.obstacle(),
        (None, false) => None,
    };
    let Some(why) = obstacle else { return Ok((Schedule::Interleaved, Groups::new(), None)) };
    if request.schedule == ScheduleAsked::Interleaved {
        return Err(Failure::usage(format!(
            "--schedule interleaved: {why}; compare fewer frameworks, or leave the flag out"
        )));
    }
    let Some(groups) = together.and_then(|together| together.groups()) else {
        return sequential(Some(why));
    };
    let labels = |group: Vec<usize>| group.into_iter().map(|place| contenders[place].label.clone());
    let groups = groups.into_iter().map(|group| labels(group).collect()).collect();
    Ok((Schedule::Grouped, groups, Some(why)))
}
