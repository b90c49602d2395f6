//! Energy of the measured iterations: the CPU packages' by RAPL (Linux's powercap), the GPU's by NVML.
//!
//! RAPL's counters are those of the whole package, for all processes on it; since 2020 only root may read
//! them on most systems.

use std::path::{Path, PathBuf};

use protocol::Energy;

use crate::gpu::Gpu;

const POWERCAP: &str = "/sys/class/powercap";

/// A meter that has been read once.
pub(crate) enum Meter<'a> {
    Rapl(Vec<(Package, u64)>),
    Nvml(&'a Gpu, u64),
}

impl<'a> Meter<'a> {
    /// `None` where there is no meter, or none that may be read.
    pub(crate) fn start(gpu: Option<&'a Gpu>) -> Option<Meter<'a>> {
        match gpu {
            Some(gpu) => Some(Meter::Nvml(gpu, gpu.energy_mj()?)),
            None => Meter::rapl(Path::new(POWERCAP)),
        }
    }

    fn rapl(powercap: &Path) -> Option<Meter<'a>> {
        let packages: Option<Vec<_>> =
            packages(powercap).into_iter().map(|package| Some((package.read_uj()?, package))).collect();
        let packages: Vec<_> = packages?.into_iter().map(|(before, package)| (package, before)).collect();
        (!packages.is_empty()).then_some(Meter::Rapl(packages))
    }

    /// Energy since the start.
    pub(crate) fn stop(self) -> Option<Energy> {
        match self {
            Meter::Rapl(packages) => {
                let spent = packages.iter().map(|(package, before)| package.spent_uj(*before));
                let microjoules = spent.sum::<Option<u64>>()?;
                Some(Energy { joules: microjoules as f64 / 1e6, method: "RAPL, package".into() })
            }
            Meter::Nvml(gpu, before) => {
                let millijoules = gpu.energy_mj()?.checked_sub(before)?;
                Some(Energy { joules: millijoules as f64 / 1e3, method: "NVML, total energy".into() })
            }
        }
    }
}

pub(crate) struct Package {
    counter: PathBuf,
    /// The counter starts again from 0 beyond this.
    range_uj: u64,
}

impl Package {
    fn read_uj(&self) -> Option<u64> {
        read_number(&self.counter)
    }

    fn spent_uj(&self, before: u64) -> Option<u64> {
        let now = self.read_uj()?;
        Some(if now >= before { now - before } else { now + self.range_uj.checked_sub(before)? })
    }
}

/// Every CPU package once. Some systems show a package's counter twice under one name, by its register
/// and by memory (`intel-rapl:0`, `intel-rapl-mmio:0`).
fn packages(powercap: &Path) -> Vec<Package> {
    let mut zones: Vec<(String, PathBuf)> = std::fs::read_dir(powercap)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let zone = entry.ok()?.path();
            let name = std::fs::read_to_string(zone.join("name")).ok()?;
            Some((name.trim().to_owned(), zone)).filter(|(name, _)| name.starts_with("package"))
        })
        .collect();
    zones.sort();
    zones.dedup_by(|a, b| a.0 == b.0);
    let package = |(_, zone): (String, PathBuf)| {
        let range_uj = read_number(&zone.join("max_energy_range_uj"))?;
        Some(Package { counter: zone.join("energy_uj"), range_uj })
    };
    zones.into_iter().filter_map(package).collect()
}

fn read_number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(powercap: &Path, zone: &str, name: &str, energy_uj: u64) {
        let directory = powercap.join(zone);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("name"), format!("{name}\n")).unwrap();
        std::fs::write(directory.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
        std::fs::write(directory.join("max_energy_range_uj"), "1000000\n").unwrap();
    }

    #[test]
    fn packages_are_summed_once_each_and_counters_wrap() {
        let powercap = tempfile::tempdir().unwrap();
        let set = |first: u64, second: u64| {
            zone(powercap.path(), "intel-rapl:0", "package-0", first);
            zone(powercap.path(), "intel-rapl-mmio:0", "package-0", first);
            zone(powercap.path(), "intel-rapl:1", "package-1", second);
            zone(powercap.path(), "intel-rapl:0:0", "core", 7);
        };
        set(100_000, 900_000);
        let meter = Meter::rapl(powercap.path()).unwrap();
        set(600_000, 400_000);
        assert_eq!(meter.stop().unwrap().joules, 0.5 + 0.5);
    }

    #[test]
    fn a_counter_that_cannot_be_read_is_no_meter() {
        let powercap = tempfile::tempdir().unwrap();
        assert!(Meter::rapl(powercap.path()).is_none());
        zone(powercap.path(), "intel-rapl:0", "package-0", 1);
        std::fs::remove_file(powercap.path().join("intel-rapl:0/energy_uj")).unwrap();
        assert!(Meter::rapl(powercap.path()).is_none());
    }
}
