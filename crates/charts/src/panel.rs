//! A panel: one chart of any kind.

use plotters::backend::DrawingBackend;

use crate::bars::Bars;
use crate::dots::Dots;
use crate::forest::{Forest, SIDES};
use crate::heatmap::Heatmap;
use crate::lines::Lines;
use crate::pen::{Drawn, Frame, Pen, SMALL};
use crate::stack::Stack;
use crate::strands::Strands;
use crate::survival::Survival;

#[derive(Debug, Clone)]
pub enum Panel {
    Bars(Bars),
    Dots(Dots),
    Forest(Forest),
    Lines(Lines),
    Strands(Strands),
    Survival(Survival),
    Stack(Stack),
    Heatmap(Heatmap),
}

/// Heights of a row, of an axis's values, of a legend, and of a chart without rows.
const ROW: i32 = 28;
const AXIS: i32 = SMALL + 8;
const LEGEND: i32 = 60;
const WITHOUT_ROWS: i32 = 222;

impl Panel {
    pub fn title(&self) -> &str {
        self.titles().0
    }

    /// The title, and the hint next to it.
    fn titles(&self) -> (&str, &str) {
        match self {
            Panel::Bars(it) => (&it.title, &it.hint),
            Panel::Dots(it) => (&it.title, &it.hint),
            Panel::Forest(it) => (&it.title, &it.hint),
            Panel::Lines(it) => (&it.title, &it.hint),
            Panel::Strands(it) => (&it.title, &it.hint),
            Panel::Survival(it) => (&it.title, &it.hint),
            Panel::Stack(it) => (&it.title, &it.hint),
            Panel::Heatmap(it) => (&it.title, &it.hint),
        }
    }

    /// A height at which the texts do not touch.
    pub(crate) fn height<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, width: i32) -> i32 {
        let (title, hint) = self.titles();
        let rows = |rows: usize| AXIS + ROW * rows.max(1) as i32;
        let below = match self {
            Panel::Bars(bars) => rows(bars.lines()),
            Panel::Dots(dots) => rows(dots.lines()),
            Panel::Forest(forest) => SIDES + rows(forest.lines()),
            Panel::Stack(stack) => LEGEND + rows(stack.rows.len()),
            Panel::Heatmap(heatmap) => AXIS + rows(heatmap.values.len()),
            Panel::Lines(_) | Panel::Strands(_) | Panel::Survival(_) => WITHOUT_ROWS,
        };
        pen.title_height(title, hint, width) + below
    }

    pub(crate) fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        match self {
            Panel::Bars(bars) => bars.draw(pen, frame),
            Panel::Dots(dots) => dots.draw(pen, frame),
            Panel::Forest(forest) => forest.draw(pen, frame),
            Panel::Lines(lines) => lines.draw(pen, frame),
            Panel::Strands(strands) => strands.draw(pen, frame),
            Panel::Survival(survival) => survival.draw(pen, frame),
            Panel::Stack(stack) => stack.draw(pen, frame),
            Panel::Heatmap(heatmap) => heatmap.draw(pen, frame),
        }
    }
}
