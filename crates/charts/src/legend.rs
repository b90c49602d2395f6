//! The legend: the colour and mark of each series.

use plotters::backend::DrawingBackend;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::style::text_anchor::{HPos, VPos};

use crate::palette::Colour;
use crate::pen::{Frame, INK, Pen, SMALL};

/// Draws entries in lines from the top of the frame. Returns the rest of the frame.
pub(crate) fn draw<DB: DrawingBackend>(
    pen: &Pen<'_, DB>,
    mut frame: Frame,
    entries: &[(String, Colour)],
) -> Result<Frame, DrawingAreaErrorKind<DB::ErrorType>> {
    if entries.is_empty() {
        return Ok(frame);
    }
    let (mut x, mut y) = (frame.left, frame.top + SMALL / 2);
    for (label, colour) in entries {
        let label = pen.fitted(label, SMALL, false, frame.width() - 16);
        let wide = 16 + pen.width(&label, SMALL, false);
        if x > frame.left && x + wide > frame.right {
            (x, y) = (frame.left, y + SMALL + 7);
        }
        pen.mark((x + 5, y), 5, *colour)?;
        pen.text(&label, (x + 16, y), SMALL, INK, (HPos::Left, VPos::Center))?;
        x += wide + 14;
    }
    frame.top = y + SMALL;
    Ok(frame)
}
