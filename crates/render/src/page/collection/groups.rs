//! Runs by machine and case.

use history::Machine;
use judge::records::case;
use judge::records::collection::{CollectedRun, Entry};

/// A run with the name of its results.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) entry: &'a Entry,
    pub(super) run: &'a CollectedRun,
}

/// Runs of one case on one machine.
pub(super) struct Case<'a> {
    pub(super) title: String,
    pub(super) model: &'a str,
    pub(super) precision: &'a str,
    pub(super) runs: Vec<Named<'a>>,
}

pub(super) struct MachineGroup<'a> {
    pub(super) machine: &'a Machine,
    pub(super) cases: Vec<Case<'a>>,
}

/// The runs by machine and case. Machines are in the order of their processors' names, cases in that of
/// theirs: no order is a ranking.
pub(super) fn machines(entries: &[Entry]) -> Vec<MachineGroup<'_>> {
    let mut machines: Vec<MachineGroup> = Vec::new();
    for entry in entries {
        let Ok(run) = &entry.run else { continue };
        let Some(first) = run.records.first() else { continue };
        let machine = &first.machine;
        let at = machines.iter().position(|group| group.machine.fingerprint == machine.fingerprint);
        let at = at.unwrap_or_else(|| {
            machines.push(MachineGroup { machine, cases: Vec::new() });
            machines.len() - 1
        });
        let title = case::in_full(&case::shared_by_arms(&first.case));
        let (cases, named) = (&mut machines[at].cases, Named { entry, run });
        match cases.iter_mut().find(|case| case.title == title) {
            Some(case) => case.runs.push(named),
            None => cases.push(Case {
                title,
                model: &first.case.model,
                precision: &first.case.precision,
                runs: vec![named],
            }),
        }
    }
    machines.sort_by_key(|group| (group.machine.cpu.clone(), group.machine.fingerprint.clone()));
    for group in &mut machines {
        group.cases.sort_by(|a, b| a.title.cmp(&b.title));
        for case in &mut group.cases {
            case.runs.sort_by_key(|named| &named.run.report.environment.started);
        }
    }
    machines
}
