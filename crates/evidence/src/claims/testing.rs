//! Cells for tests.

use comparison::judge::report::State;
use comparison::judge::study::{Cell, CellRow};
use comparison::plan::{Axis, Setting};

/// A cell of six rounds at this place, without contenders.
pub(crate) fn cell(place: &[(Axis, u32)]) -> Cell {
    let settings = place.iter().map(|(axis, value)| (*axis, Setting::Number(*value))).collect();
    Cell { rounds: 6, refused: None, ..Cell::refused(settings, String::new()) }
}

/// A contender that was measured, without figures.
pub(crate) fn row(framework: &str) -> CellRow {
    CellRow {
        framework: framework.to_owned(),
        state: State::Measured,
        reasons: Vec::new(),
        parity: String::new(),
        precision: "f32".to_owned(),
        metrics: Default::default(),
        memory: None,
        agreement: None,
        steadiness: Default::default(),
        text: None,
        tokens: None,
    }
}
