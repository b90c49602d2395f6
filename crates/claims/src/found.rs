//! A figure that was read, and how far it may be off.

/// A figure that was found, in the unit of its reader.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub value: f64,
    pub interval: Option<Interval>,
}

/// Bounds of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub bounds: (f64, f64),
    /// A 95 % interval; else the least and largest of the processes.
    pub is_confidence: bool,
}

/// A figure, or the reason why there is none.
pub(crate) type Outcome = Result<Found, String>;

impl Found {
    pub(crate) fn alone(value: f64) -> Found {
        Found { value, interval: None }
    }

    /// The same seen through a falling or rising function.
    pub(crate) fn map(self, function: impl Fn(f64) -> f64) -> Found {
        let interval = self.interval.map(|Interval { bounds: (low, high), is_confidence }| {
            let (low, high) = (function(low), function(high));
            Interval { bounds: (low.min(high), low.max(high)), is_confidence }
        });
        Found { value: function(self.value), interval }
    }
}
