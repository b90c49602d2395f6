//! Compares the machine's own speed in both runs, by its probes.

use history::{Machine, Record};

use super::pairing::{self, Difference};

/// The change that the machine may explain, as factors on a time: the current run's conditions against the
/// baseline's. A framework waits for memory, for arithmetic or for neither. The machine's effect on it is
/// therefore between nothing and the larger of the two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Largest possible speed-up by the machine, as a factor of at most 1.
    pub least: f64,
    /// Largest possible slowdown by the machine, as a factor of at least 1.
    pub most: f64,
}

/// Largest change of the probes' median, as a share, if a record has no interval for it: the limit on drift of rule
/// R12.
const TOLERANCE: f64 = 0.10;

impl Speed {
    /// A machine that did not change.
    pub const SAME: Speed = Speed { least: 1.0, most: 1.0 };

    /// The change between two machines that may explain a finding.
    pub fn between(baseline: &Machine, current: &Machine) -> Speed {
        let changes = changes(baseline, current);
        let factors = || changes.iter().map(|change| change.factor);
        Speed { least: factors().fold(1.0, f64::min), most: factors().fold(1.0, f64::max) }
    }

    /// The remaining "so many times worse" after allowing for the machine.
    pub fn allowed_for(self, worse: f64) -> (f64, f64) {
        (worse / self.most, worse / self.least)
    }
}

/// A probe that shows that the machine changed.
pub struct Change {
    what: &'static str,
    unit: &'static str,
    baseline: f64,
    current: f64,
    /// Factor on a time: above 1 if the machine was slower.
    factor: f64,
}

/// The probes that changed by more than they vary. Their 95 % intervals of the median do not overlap; if a run has no
/// interval, they changed by more than a tenth.
pub fn changes(baseline: &Machine, current: &Machine) -> Vec<Change> {
    let probes = [
        ("memory bandwidth", "GB/s", baseline.read_bandwidth, current.read_bandwidth, "read_bandwidth"),
        ("f32 arithmetic", "GFLOP/s", baseline.arithmetic, current.arithmetic, "arithmetic"),
    ];
    let of_probe = |(what, unit, a, b, name)| {
        let (a, b): (f64, f64) =
            (Option::<f64>::filter(a, |a| *a > 0.0)?, Option::<f64>::filter(b, |b| *b > 0.0)?);
        let differs = match (interval(baseline, name), interval(current, name)) {
            (Some(a), Some(b)) => a.1 < b.0 || b.1 < a.0,
            _ => (a / b).max(b / a) > 1.0 + TOLERANCE,
        };
        differs.then(|| Change { what, unit, baseline: a, current: b, factor: a / b })
    };
    probes.into_iter().filter_map(of_probe).collect()
}

/// The 95 % interval of the median of a run's probes.
fn interval(machine: &Machine, probe: &str) -> Option<(f64, f64)> {
    let kept = machine.other.get(&format!("{probe}_interval"))?;
    serde_json::from_value(kept.clone()).ok()
}

impl Change {
    /// The change in a few words: "memory bandwidth 33 → 20 GB/s".
    pub fn in_short(&self) -> String {
        let Change { what, unit, baseline, current, .. } = self;
        format!("{what} {:.0} → {:.0} {unit}", baseline / 1e9, current / 1e9)
    }

    /// The change in one sentence.
    pub fn sentence(&self) -> String {
        let Change { what, unit, baseline, current, .. } = self;
        format!(
            "{what} was {:.0} {unit} in the current run and {:.0} {unit} in the baseline",
            current / 1e9,
            baseline / 1e9
        )
    }
}

/// The differences of two machines, in words; empty if there are none.
pub fn differences(baseline: &Record, current: &Record) -> Vec<String> {
    pairing::in_words(hardware(&baseline.machine, &current.machine))
}

/// The differences in the hardware of the two.
pub(super) fn hardware(a: &Machine, b: &Machine) -> Vec<Difference> {
    if a.fingerprint == b.fingerprint {
        return Vec::new();
    }
    let mut found: Vec<Difference> = Vec::new();
    let mut note = |what: &'static str, a: String, b: String| {
        if a != b {
            found.push((what, a, b));
        }
    };
    note("processor", a.cpu.clone(), b.cpu.clone());
    note("physical cores", optional(a.physical_cores), optional(b.physical_cores));
    note("cores to use", a.available_cores.to_string(), b.available_cores.to_string());
    let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
    note("memory", gib(a.memory_bytes), gib(b.memory_bytes));
    note("GPUs", a.gpus.join(", "), b.gpus.join(", "));
    if found.is_empty() {
        found.push(("machine", a.fingerprint.clone(), b.fingerprint.clone()));
    }
    found
}

fn optional(count: Option<usize>) -> String {
    count.map_or_else(|| "unknown".into(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::testing;

    fn machine(bandwidth: f64, interval: Option<(f64, f64)>) -> Machine {
        let mut machine = testing::record("one", 100.0).machine;
        (machine.read_bandwidth, machine.arithmetic) = (Some(bandwidth), Some(1e11));
        if let Some(interval) = interval {
            machine.other.insert("read_bandwidth_interval".into(), serde_json::json!(interval));
        }
        machine
    }

    #[test]
    fn a_slower_memory_may_explain_as_much_and_no_more() {
        let speed = Speed::between(&machine(60e9, None), &machine(40e9, None));
        assert_eq!((speed.least, speed.most), (1.0, 1.5));
        assert_eq!(speed.allowed_for(1.5), (1.0, 1.5));
    }

    #[test]
    fn a_faster_one_may_hide_something() {
        let speed = Speed::between(&machine(40e9, None), &machine(60e9, None));
        assert!(speed.allowed_for(1.0).1 > 1.49, "{speed:?}");
    }

    #[test]
    fn what_probes_vary_by_is_no_change() {
        assert_eq!(Speed::between(&machine(40e9, None), &machine(43e9, None)), Speed::SAME);
        let wide = machine(40e9, Some((35e9, 60e9)));
        assert_eq!(Speed::between(&wide, &machine(55e9, Some((50e9, 58e9)))), Speed::SAME);
        let narrow = machine(40e9, Some((39e9, 41e9)));
        assert!(Speed::between(&narrow, &machine(43e9, Some((42e9, 44e9)))).least < 0.94);
    }
}
