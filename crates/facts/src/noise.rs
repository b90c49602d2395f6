//! Other activity of the machine while a worker was measured (rule R12), and the limits of noise.

use serde::{Deserialize, Serialize};

/// The limits of noise. Shares are of the time of the CPUs that the workers may use.
pub struct Limits {
    /// Share used by other processes.
    pub foreign: f64,
    /// Share that the hypervisor took for other machines.
    pub stolen: f64,
    /// Share that a cgroup's quota withheld.
    pub throttled: f64,
    /// Slowdown of fixed arithmetic against its best time in this comparison, as a share.
    pub drift: f64,
}

/// A background process that takes a tenth of the CPUs slows a worker on all CPUs by a tenth, which is five times the
/// margin of equivalence. Interrupts, timers and a monitoring agent stay far below these limits.
pub const LIMITS: Limits = Limits { foreign: 0.10, stolen: 0.05, throttled: 0.02, drift: 0.10 };

/// Other activity of the machine in a stretch of time. `None` means "not available".
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Noise {
    /// Length of the stretch.
    pub seconds: f64,
    /// Share of the CPUs' time that other processes used.
    pub foreign: Option<f64>,
    /// Share that the hypervisor took for other machines.
    pub stolen: Option<f64>,
    /// Share that a cgroup's quota withheld.
    pub throttled: Option<f64>,
    /// Number of times that the CPU slowed down because of heat.
    pub thermal_events: Option<u64>,
    /// Number of other processes that computed on the GPU.
    pub foreign_gpu_processes: Option<usize>,
    /// Causes that slowed the GPU down at the end, in words; only unintended ones: heat, not the power limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_held_back: Vec<String>,
    /// Number of tasks that ran or wanted to run, at the end.
    pub runnable: Option<u64>,
    /// The one-minute load average at the end.
    pub load: Option<f64>,
}

impl Noise {
    /// The values above the limits, in words. Empty on a quiet machine.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut share = |value: Option<f64>, limit: f64, what: &str| {
            if let Some(value) = value.filter(|&value| value > limit) {
                complaints.push(format!("{what} {:.0} % of the CPUs' time", value * 100.0));
            }
        };
        share(self.foreign, LIMITS.foreign, "other processes used");
        share(self.stolen, LIMITS.stolen, "the hypervisor took");
        share(self.throttled, LIMITS.throttled, "a cgroup's quota withheld");
        if let Some(events) = self.thermal_events.filter(|&events| events > 0) {
            complaints.push(format!("the CPU slowed down because of heat ({events} events)"));
        }
        if let Some(count) = self.foreign_gpu_processes.filter(|&count| count > 0) {
            complaints.push(match count {
                1 => "another process computed on the GPU".to_owned(),
                count => format!("{count} other processes computed on the GPU"),
            });
        }
        if !self.gpu_held_back.is_empty() {
            complaints.push(format!("the GPU was slowed down by {}", self.gpu_held_back.join(" and ")));
        }
        complaints
    }
}
