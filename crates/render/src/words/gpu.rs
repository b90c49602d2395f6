//! The findings about the GPU of a run.

use std::collections::BTreeSet;

use judge::Metric;
use judge::report::{Report, Row};

/// The origin of the figures of memory, and each contender's clocks, heat and slowdowns.
pub(super) fn findings(report: &Report) -> Vec<String> {
    if !report.plan.is_on_gpu() {
        return Vec::new();
    }
    let device = &report.plan.device;
    let peak = Metric::PeakMemory.words();
    let memory = match report.rows.iter().any(|row| row.typical(Metric::PeakMemory).is_some()) {
        true => {
            format!("{peak} is what each process held on {device}, as its driver reported after each phase")
        }
        false => format!("{peak} on {device} is not available"),
    };
    let told: Vec<String> = report.rows.iter().filter_map(did).collect();
    let did = (!told.is_empty()).then(|| format!("{device} in measured requests: {}", told.join("; ")));
    let parts: Vec<String> = report.rows.iter().filter_map(by_part).collect();
    let parts = (!parts.is_empty()).then(|| format!("{device}'s memory by part (MB): {}", parts.join("; ")));
    [memory].into_iter().chain(parts).chain(did).chain(remarks(report)).collect()
}

/// The parts of a row's peak on the GPU, and the mean.
fn by_part(row: &Row) -> Option<String> {
    let parts = row.memory.as_ref()?.gpu_parts.as_ref()?;
    let mb = |bytes: f64| format!("{:.0}", bytes / 1e6);
    let summands = parts.summands().into_iter();
    let told = summands.filter_map(|(name, bytes)| Some(format!("{} {name}", mb(bytes?))));
    let told = told.collect::<Vec<_>>().join(" + ");
    let mean = parts.mean.map_or_else(String::new, |mean| format!(", {} on average", mb(mean)));
    Some(format!("{} {told} = {}{mean}", row.framework, mb(parts.peak)))
}

fn did(row: &Row) -> Option<String> {
    let work = row.gpu.as_ref()?;
    let clock = match (work.slowest_mhz, work.fastest_mhz, work.most_mhz) {
        (Some(slowest), Some(fastest), Some(most)) if slowest == fastest => {
            Some(format!("{fastest} of {most} MHz"))
        }
        (Some(slowest), Some(fastest), Some(most)) => Some(format!("{slowest}–{fastest} of {most} MHz")),
        _ => None,
    };
    let heat = work.celsius.map(|celsius| format!("{celsius} °C at most"));
    let causes: Vec<&str> = work.held_back.iter().map(|cause| cause.as_str()).collect();
    let slowed = (!causes.is_empty()).then(|| format!("slowed down by {}", causes.join(" and ")));
    let told: Vec<String> = [clock, heat, slowed].into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("{} {}", row.framework, told.join(", ")))
}

/// Remarks; one common to all contenders appears once.
fn remarks(report: &Report) -> BTreeSet<String> {
    let works = report.rows.iter().filter_map(|row| row.gpu.as_ref());
    works.flat_map(|work| &work.remarks).map(|remark| remark.as_str().to_owned()).collect()
}
