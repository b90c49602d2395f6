//! Changes from one run of a framework to a later one, other than its figures.

use history::Record;

use super::{machine, pairing};

/// Whether the framework can be the cause of a change of figures between the two: the same hardware, case and
/// settings.
pub fn is_comparable(earlier: &Record, later: &Record) -> bool {
    earlier.machine.fingerprint == later.machine.fingerprint && pairing::settings(earlier, later).is_empty()
}

/// Other changes: versions, the machine and its speed, settings. A few words each: "library: ort 1.22 → ort
/// 1.23".
pub fn changed(earlier: &Record, later: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |what: &str, a: Option<&str>, b: Option<&str>| {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            found.push(format!("{what}: {a} → {b}"));
        }
    };
    note("library", earlier.library.as_deref(), later.library.as_deref());
    if earlier.binding != earlier.library || later.binding != later.library {
        note("binding", earlier.binding.as_deref(), later.binding.as_deref());
    }
    note("Photofinish", known(&earlier.driver_version), known(&later.driver_version));
    let (a, b) = (&earlier.machine, &later.machine);
    note("host", known(&a.host), known(&b.host));
    note("system", a.os.as_deref(), b.os.as_deref());
    note("kernel", a.kernel.as_deref(), b.kernel.as_deref());
    let settings = pairing::settings(earlier, later).into_iter();
    for (what, a, b) in settings.chain(machine::hardware(&earlier.machine, &later.machine)) {
        note(what, Some(&a), Some(&b));
    }
    found.extend(machine::changes(a, b).iter().map(machine::Change::in_short));
    found
}

fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::testing::record;

    #[test]
    fn versions_and_the_machine_are_told_and_only_settings_and_hardware_forbid_a_comparison() {
        let (earlier, mut later) = (record("one", 100.0), record("one", 100.0));
        assert_eq!(changed(&earlier, &later), [""; 0]);
        later.library = Some("lib 2".into());
        later.machine.kernel = Some("7.0".into());
        later.machine.host = "another".into();
        assert_eq!(changed(&earlier, &later), ["library: lib 1 → lib 2", "host: host → another"]);
        assert!(is_comparable(&earlier, &later));
        later.settings.schedule = Some("interleaved".into());
        assert!(changed(&earlier, &later).contains(&"schedule: sequential → interleaved".to_owned()));
        assert!(!is_comparable(&earlier, &later));
        let mut elsewhere = record("one", 100.0);
        (elsewhere.machine.fingerprint, elsewhere.machine.cpu) = ("e".into(), "Another".into());
        assert_eq!(changed(&earlier, &elsewhere), ["processor: A Processor → Another"]);
        assert!(!is_comparable(&earlier, &elsewhere));
    }

    #[test]
    fn a_machine_that_became_slower_is_told() {
        let (mut earlier, mut later) = (record("one", 100.0), record("one", 80.0));
        (earlier.machine.read_bandwidth, later.machine.read_bandwidth) = (Some(40e9), Some(20e9));
        assert_eq!(changed(&earlier, &later), ["memory bandwidth 40 → 20 GB/s"]);
    }
}
