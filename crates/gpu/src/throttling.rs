//! Why a GPU's clocks are lower than they could be.

use nvml_wrapper::bitmasks::device::ThrottleReasons;

/// A cause of lower clocks while a GPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBack {
    /// It draws as much power as it may.
    Power,
    Heat,
    /// The power supply demands less power.
    PowerBrake,
    /// Its own protection, for a reason that it does not report.
    Hardware,
    /// Clocks set by a user.
    Settings,
    /// Another GPU of its group.
    Group,
}

impl HeldBack {
    /// A sentence's end: "the GPU was slowed down by ...".
    pub fn words(self) -> &'static str {
        match self {
            HeldBack::Power => "its power limit",
            HeldBack::Heat => "heat",
            HeldBack::PowerBrake => "the power supply",
            HeldBack::Hardware => "its own protection",
            HeldBack::Settings => "clocks that were set by hand",
            HeldBack::Group => "another GPU of its group",
        }
    }

    /// An idle GPU is slow too, and nothing holds it back.
    pub(crate) fn all(reasons: ThrottleReasons) -> Vec<HeldBack> {
        let table = [
            (ThrottleReasons::SW_POWER_CAP, HeldBack::Power),
            (ThrottleReasons::SW_THERMAL_SLOWDOWN, HeldBack::Heat),
            (ThrottleReasons::HW_THERMAL_SLOWDOWN, HeldBack::Heat),
            (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, HeldBack::PowerBrake),
            (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, HeldBack::Settings),
            (ThrottleReasons::SYNC_BOOST, HeldBack::Group),
        ];
        let mut found: Vec<HeldBack> =
            table.into_iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, cause)| cause).collect();
        // The hardware's own bit is set together with that of its cause, if the cause is known.
        let has_cause = found.iter().any(|cause| matches!(cause, HeldBack::Heat | HeldBack::PowerBrake));
        if reasons.contains(ThrottleReasons::HW_SLOWDOWN) && !has_cause {
            found.push(HeldBack::Hardware);
        }
        found.sort();
        found.dedup();
        found
    }
}
