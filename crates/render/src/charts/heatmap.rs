//! A heatmap: one figure for each combination of two varied settings.

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::charts::pen::{Drawn, Frame, MUTED, Pen, SMALL};
use crate::words::number;

#[derive(Debug, Clone, Default)]
pub(crate) struct Heatmap {
    /// Name and values of the setting that varies from left to right.
    pub(crate) x: (String, Vec<String>),
    /// The same for the one from top to bottom.
    pub(crate) y: (String, Vec<String>),
    /// `[y][x]`; `None` if there is no figure.
    pub(crate) values: Vec<Vec<Option<f64>>>,
    /// Lowest and highest value of the colour scale, shared by heatmaps that are read side by side. `None`:
    /// the range of `values`.
    pub(crate) range: Option<(f64, f64)>,
}

/// Five colours of cividis (Nuñez, Anderton and Renslow, 2018), which has the same order for all kinds of
/// colour vision.
const CIVIDIS: [[f64; 3]; 5] = [
    [0.0, 34.0, 78.0],
    [66.0, 78.0, 108.0],
    [124.0, 123.0, 120.0],
    [187.0, 173.0, 108.0],
    [254.0, 232.0, 56.0],
];

impl Heatmap {
    pub(crate) fn height(&self) -> i32 {
        2 * (SMALL + 8) + 28 * self.values.len().max(1) as i32
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let ((x_name, columns), (y_name, rows)) = (&self.x, &self.y);
        let known = || self.values.iter().flatten().copied().flatten().filter(|value| value.is_finite());
        if columns.is_empty() || rows.is_empty() || known().next().is_none() {
            return pen.nothing(frame, "nothing to show");
        }
        let own = || (known().fold(f64::INFINITY, f64::min), known().fold(f64::NEG_INFINITY, f64::max));
        let (low, high) = self.range.unwrap_or_else(own);
        let labels = rows.iter().map(|row| pen.width(row, SMALL, false)).max().unwrap_or(0);
        let left = frame.left + labels.max(pen.width(y_name, SMALL, false)).min(frame.width() / 3) + 10;
        let (top, bottom) = (frame.top + SMALL + 6, frame.bottom - SMALL - 8);
        let wide = (frame.right - left) / columns.len() as i32;
        let tall = ((bottom - top) / rows.len() as i32).clamp(1, 140);
        pen.text(y_name, (left - 10, frame.top), SMALL, MUTED, (HPos::Right, VPos::Top))?;
        let x_title = format!("{x_name} →");
        pen.text(&x_title, (left, frame.top), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        for (row, label) in rows.iter().enumerate() {
            let y = top + row as i32 * tall;
            let label = pen.fitted(label, SMALL, false, left - 10 - frame.left);
            pen.text(&label, (left - 10, y + tall / 2), SMALL, MUTED, (HPos::Right, VPos::Center))?;
            for column in 0..columns.len() {
                let value = self.values.get(row).and_then(|values| values.get(column).copied()).flatten();
                let x = left + column as i32 * wide;
                let cell = Frame { left: x, top: y, right: x + wide - 2, bottom: y + tall - 2 };
                draw_cell(pen, cell, value.filter(|value| value.is_finite()), (low, high))?;
            }
        }
        for (column, label) in columns.iter().enumerate() {
            let x = left + column as i32 * wide + wide / 2;
            let label = pen.fitted(label, SMALL, false, wide);
            let y = top + rows.len() as i32 * tall + 3;
            pen.text(&label, (x, y), SMALL, MUTED, (HPos::Center, VPos::Top))?;
        }
        Ok(())
    }
}

fn draw_cell<DB: DrawingBackend>(
    pen: &Pen<'_, DB>,
    cell: Frame,
    value: Option<f64>,
    (low, high): (f64, f64),
) -> Drawn<DB> {
    let middle = ((cell.left + cell.right) / 2, (cell.top + cell.bottom) / 2);
    let Some(value) = value else {
        pen.outline(cell, MUTED, 1)?;
        return pen.text("–", middle, SMALL, MUTED, (HPos::Center, VPos::Center));
    };
    let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    let at = share * (CIVIDIS.len() - 1) as f64;
    let (below, above) = (CIVIDIS[at.floor() as usize], CIVIDIS[at.ceil() as usize]);
    let mixed: Vec<f64> = below.iter().zip(above).map(|(from, to)| from + (to - from) * at.fract()).collect();
    pen.fill(cell, RGBColor(mixed[0] as u8, mixed[1] as u8, mixed[2] as u8))?;
    let light = 0.2126 * mixed[0] + 0.7152 * mixed[1] + 0.0722 * mixed[2];
    // Independent of the page's theme, because the cell's colour is.
    let ink = if light > 110.0 { RGBColor(0x10, 0x12, 0x14) } else { RGBColor(0xFF, 0xFF, 0xFF) };
    let text = pen.fitted(&number(value), SMALL, false, cell.width());
    pen.text(&text, middle, SMALL, ink, (HPos::Center, VPos::Center))
}
