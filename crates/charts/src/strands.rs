//! One thin line for each repetition of a series, with a mark at both its ends.

use plotters::backend::DrawingBackend;
use plotters::style::RGBColor;

use crate::lines::{Line, LineAxis, Lines, Point};
use crate::palette::Colour;
use crate::pen::{Drawn, Frame, Pen};

#[derive(Debug, Clone, Default)]
pub struct Strands {
    pub title: String,
    /// Next to the title: the unit.
    pub hint: String,
    pub x: LineAxis,
    pub y: LineAxis,
    pub series: Vec<Strand>,
    /// An earlier phase, from the start up to this value, and its name.
    pub shaded: Option<(f64, String)>,
}

/// A series and its repetitions.
#[derive(Debug, Clone)]
pub struct Strand {
    pub label: String,
    pub colour: Colour,
    /// Points (x, y) of each repetition, in order.
    pub lines: Vec<Vec<(f64, f64)>>,
}

impl Strands {
    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        // Title, legend, scales and axes are those of lines through all points.
        let all = |strand: &Strand| {
            let points = strand.lines.iter().flatten().map(|&(x, y)| Point { x, y, interval: None });
            Line { label: strand.label.clone(), colour: strand.colour, points: points.collect() }
        };
        let lines = Lines {
            title: self.title.clone(),
            hint: self.hint.clone(),
            x: self.x.clone(),
            y: self.y.clone(),
            series: self.series.iter().map(all).collect(),
            shaded: self.shaded.clone(),
        };
        let Some((x, y)) = lines.draw_axes_and_legend(pen, frame)? else { return Ok(()) };
        for strand in &self.series {
            let ink = RGBColor::from(strand.colour);
            for line in &strand.lines {
                let finite = line.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
                let places: Vec<(i32, i32)> =
                    finite.map(|&(at, value)| (x.pixel(at), y.pixel(value))).collect();
                if places.len() > 1 {
                    pen.line(&places, ink, 1)?;
                }
                for &end in places.first().into_iter().chain(places.last()) {
                    pen.mark(end, 3, strand.colour)?;
                }
            }
        }
        Ok(())
    }
}
