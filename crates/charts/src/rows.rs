//! Rows over a common axis: a label on the left, marks along the axis, a figure on the right, headings above
//! groups.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};

use crate::pen::{Drawn, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE};
use crate::scale::{Scale, tick};

/// One row, or the heading of the following rows.
pub(crate) enum Entry<'a> {
    Heading(&'a str),
    Row {
        label: &'a str,
        /// The figure on the right.
        value: String,
        /// Text instead of marks; empty if there are marks.
        note: &'a str,
        /// Whether its colour is muted.
        muted: bool,
    },
}

/// Positions of the rows and the axis.
pub(crate) struct Layout {
    frame: Frame,
    labels: i32,
    /// The axis in pixels.
    pub(crate) left: i32,
    pub(crate) right: i32,
    /// Height of a row, and the bottom of the last one.
    tall: i32,
    pub(crate) end: i32,
}

/// Height of a heading.
const HEADING: i32 = SMALL + 6;

impl Layout {
    /// `tallest`: greatest height of a row, in pixels.
    pub(crate) fn new<DB: DrawingBackend>(
        pen: &Pen<'_, DB>,
        frame: Frame,
        entries: &[Entry<'_>],
        tallest: i32,
    ) -> Layout {
        let (mut labels, mut values, mut rows, mut headings) = (0, 0, 0, 0);
        for entry in entries {
            match entry {
                Entry::Heading(_) => headings += 1,
                Entry::Row { label, value, .. } => {
                    rows += 1;
                    labels = labels.max(pen.width(label, SMALL, false));
                    values = values.max(pen.width(value, SMALL, false));
                }
            }
        }
        let labels = labels.min(frame.width() * 2 / 5);
        let left = frame.left + labels + 10;
        let right = (frame.right - values - 12).max(left + 20);
        let room = frame.bottom - SMALL - 8 - frame.top - headings * HEADING;
        let tall = (room / rows.max(1)).clamp(1, tallest);
        Layout { frame, labels, left, right, tall, end: frame.top + tall * rows + headings * HEADING }
    }

    /// The top of the first row.
    pub(crate) fn top(&self) -> i32 {
        self.frame.top
    }

    /// Draws lines across all rows, and the values of the axis below them.
    pub(crate) fn axis<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, scale: &Scale, unit: &str) -> Drawn<DB> {
        let mut free = i32::MIN;
        for at in scale.ticks(44) {
            let x = scale.pixel(at);
            pen.line(&[(x, self.frame.top), (x, self.end)], GRID, 1)?;
            let text = tick(at) + unit;
            let half = pen.width(&text, SMALL, false) / 2;
            if x - half > free {
                pen.text(&text, (x, self.end + 5), SMALL, MUTED, (HPos::Center, VPos::Top))?;
                free = x + half + 8;
            }
        }
        Ok(())
    }

    /// Draws labels and figures, and calls `marks` for each row without a note, with its number, its middle
    /// and its height.
    pub(crate) fn rows<DB: DrawingBackend>(
        &self,
        pen: &Pen<'_, DB>,
        entries: &[Entry<'_>],
        mut marks: impl FnMut(usize, i32, i32) -> Drawn<DB>,
    ) -> Drawn<DB> {
        let (mut y, mut index) = (self.frame.top, 0);
        for entry in entries {
            match entry {
                Entry::Heading(text) => {
                    let text = pen.fitted(text, SMALL, false, self.frame.width());
                    let right = self.frame.left + pen.width(&text, SMALL, false) + 4;
                    // A background, so that no line of the axis runs through the text.
                    let behind = Frame { left: self.frame.left, top: y, right, bottom: y + HEADING - 1 };
                    pen.fill(behind, SURFACE)?;
                    pen.text(&text, (self.frame.left, y + 3), SMALL, MUTED, (HPos::Left, VPos::Top))?;
                    y += HEADING;
                }
                Entry::Row { label, value, note, muted } => {
                    let middle = y + self.tall / 2;
                    let ink = if *muted { MUTED } else { INK };
                    let label = pen.fitted(label, SMALL, false, self.labels);
                    pen.text(&label, (self.left - 10, middle), SMALL, ink, (HPos::Right, VPos::Center))?;
                    if note.is_empty() {
                        marks(index, middle, self.tall)?;
                        pen.text(value, (self.frame.right, middle), SMALL, ink, (HPos::Right, VPos::Center))?;
                    } else {
                        let note = pen.fitted(note, SMALL, false, self.frame.right - self.left - 6);
                        let right = self.left + 6 + pen.width(&note, SMALL, false) + 4;
                        let half = SMALL / 2 + 2;
                        let behind =
                            Frame { left: self.left + 2, top: middle - half, right, bottom: middle + half };
                        pen.fill(behind, SURFACE)?;
                        let at = (self.left + 6, middle);
                        pen.text(&note, at, SMALL, MUTED, (HPos::Left, VPos::Center))?;
                    }
                    y += self.tall;
                    index += 1;
                }
            }
        }
        Ok(())
    }
}
