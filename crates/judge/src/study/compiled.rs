//! Cost and gain of compiling: a contender compared with itself without its JIT, in the same rounds.

use plan::sweep::without_jit;

use super::cell::{Cell, CellRow};
use crate::metrics::Metric;

/// A contender with a JIT, and the same without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compiled {
    /// Extra time of first runs compared with those without the JIT, in milliseconds.
    pub compiling_ms: f64,
    /// Time of a token with and without, in steady processes, in milliseconds.
    pub with_ms: f64,
    pub without_ms: f64,
}

impl Compiled {
    /// The figures of a row with its counterpart in the cell.
    pub fn new(cell: &Cell, row: &CellRow) -> Option<Compiled> {
        let name = without_jit(&row.framework);
        let other = cell.rows.iter().find(|other| other.framework == name)?;
        let cost = |row: &CellRow| Some(row.steadiness.first_runs.as_ref()?.cost_ms);
        Some(Compiled {
            compiling_ms: cost(row)? - cost(other)?,
            with_ms: row.typical(Metric::Latency)?,
            without_ms: other.typical(Metric::Latency)?,
        })
    }

    /// The number of tokens after which the time for compiling is regained: 1 if compiling takes none, `None`
    /// if a token gains nothing.
    pub fn pays_from(&self) -> Option<u64> {
        let gained = self.without_ms - self.with_ms;
        (gained > 0.0).then(|| (self.compiling_ms / gained).ceil().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(compiling_ms: f64, with_ms: f64, without_ms: f64) -> Compiled {
        Compiled { compiling_ms, with_ms, without_ms }
    }

    #[test]
    fn compiling_pays_once_its_time_is_gained_back() {
        assert_eq!(compiled(1000.0, 10.0, 60.0).pays_from(), Some(20));
        assert_eq!(compiled(1001.0, 10.0, 60.0).pays_from(), Some(21));
        assert_eq!(compiled(-3.0, 10.0, 60.0).pays_from(), Some(1));
        assert_eq!(compiled(1000.0, 60.0, 60.0).pays_from(), None);
    }
}
