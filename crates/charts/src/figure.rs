//! A figure: panels on a grid under a title, rendered as SVG or PNG.

use std::ops::Range;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::IntoDrawingArea;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::bars::Bars;
use crate::dots::Dots;
use crate::font;
use crate::forest::Forest;
use crate::heatmap::Heatmap;
use crate::lines::Lines;
use crate::palette;
use crate::pen::{Drawn, FIGURE_TITLE, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE};
use crate::stack::Stack;
use crate::strands::Strands;
use crate::survival::Survival;

#[derive(Debug, Clone, Default)]
pub struct Figure {
    /// Above all panels; may be empty.
    pub title: String,
    /// The answer, one to four sentences below the title, in ink and never cut.
    pub answer: Vec<String>,
    /// What was measured, on what; may be empty.
    pub subtitle: String,
    pub panels: Vec<Panel>,
    /// Panels side by side. Where that leaves a gap, the first panel is as wide as the figure.
    pub columns: usize,
    /// Below all panels: how to read it; may be empty.
    pub note: String,
}

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

/// In pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot draw a chart: {0}")]
pub struct Error(String);

/// Pixels drawn for each of the finished bitmap, in both directions: edges are smoothed by averaging them.
const OVERSAMPLED: u32 = 2;
const LARGEST: u32 = 8192;

/// Size of the answer's text, and the space between panels, in pixels.
const ANSWER: i32 = 17;
const BETWEEN: i32 = 24;
const BESIDE: i32 = 36;

impl Figure {
    /// A figure of one panel, without a title of its own.
    pub fn single(panel: Panel) -> Figure {
        Figure { panels: vec![panel], columns: 1, ..Figure::default() }
    }

    /// A document of its own, on white.
    pub fn svg(&self, size: Size) -> Result<String, Error> {
        let text = self.drawn_svg(size)?;
        Ok(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}"))
    }

    /// An element for a page: it scales with its box, takes its inks from the style variables `--ink`, `--muted`,
    /// `--grid` and `--surface` and its colours from [`crate::variables`], and is told to screen readers by `title` and `description`. `id` is unique in the page.
    pub fn inline_svg(&self, size: Size, id: &str, title: &str, description: &str) -> Result<String, Error> {
        let text = self.drawn_svg(size)?;
        let body = text.split_once('>').map_or("", |(_, body)| body);
        let mut body = body.to_owned();
        for (ink, variable) in [(INK, "ink"), (MUTED, "muted"), (GRID, "grid"), (SURFACE, "surface")] {
            let RGBColor(red, green, blue) = ink;
            body = body
                .replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"var(--{variable})\""));
        }
        body = palette::with_variables(body);
        body = body.replace(&format!("font-family=\"{}\" ", font::FAMILY), "");
        let Size { width, height } = size;
        let (title, description) = (escaped(title), escaped(description));
        Ok(format!(
            "<svg viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-description\">\n<title id=\"{id}-title\">{title}</title>\n\
             <desc id=\"{id}-description\">{description}</desc>{body}"
        ))
    }

    /// A PNG file of exactly this size.
    pub fn png(&self, size: Size) -> Result<Vec<u8>, Error> {
        check(size)?;
        font::register();
        let (wide, high) = (size.width * OVERSAMPLED, size.height * OVERSAMPLED);
        let mut pixels = vec![0_u8; wide as usize * high as usize * 3];
        {
            let root = BitMapBackend::with_buffer(&mut pixels, (wide, high)).into_drawing_area();
            let drawn = self.draw(&Pen { area: &root, scale: OVERSAMPLED as i32 }, size);
            drawn.and_then(|()| root.present()).map_err(|e| Error(e.to_string()))?;
        }
        let averaged = averaged(&pixels, size);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, size.width, size.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::High);
        let written = encoder.write_header().and_then(|mut writer| {
            writer.write_image_data(&averaged)?;
            writer.finish()
        });
        written.map_err(|e| Error(e.to_string()))?;
        Ok(file)
    }

    fn drawn_svg(&self, size: Size) -> Result<String, Error> {
        check(size)?;
        font::register();
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, (size.width, size.height)).into_drawing_area();
            let drawn = self.draw(&Pen { area: &root, scale: 1 }, size);
            drawn.and_then(|()| root.present()).map_err(|e| Error(e.to_string()))?;
        }
        Ok(text)
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, size: Size) -> Drawn<DB> {
        let (width, height) = (size.width as i32, size.height as i32);
        let single = self.title.is_empty() && self.panels.len() == 1;
        let edge = if single { 6 } else { 24 };
        pen.fill(Frame { left: 0, top: 0, right: width, bottom: height }, SURFACE)?;
        let mut top = edge;
        if !self.title.is_empty() {
            let title = pen.fitted(&self.title, FIGURE_TITLE, true, width - 2 * edge);
            pen.bold(&title, (edge, top), FIGURE_TITLE)?;
            top += FIGURE_TITLE + 8;
        }
        for line in
            self.answer.iter().flat_map(|line| pen.wrapped(line, ANSWER, width - 2 * edge, usize::MAX))
        {
            pen.text(&line, (edge, top), ANSWER, INK, (HPos::Left, VPos::Top))?;
            top += ANSWER + 7;
        }
        for line in pen.wrapped(&self.subtitle, SMALL, width - 2 * edge, 2) {
            pen.text(&line, (edge, top), SMALL, MUTED, (HPos::Left, VPos::Top))?;
            top += SMALL + 5;
        }
        let mut bottom = height - edge;
        let note = pen.wrapped(&self.note, SMALL, width - 2 * edge, 3);
        bottom -= note.len() as i32 * (SMALL + 5);
        for (index, line) in note.iter().enumerate() {
            let y = bottom + 5 + index as i32 * (SMALL + 5);
            pen.text(line, (edge, y), SMALL, MUTED, (HPos::Left, VPos::Top))?;
        }
        if !single {
            top += 12;
            bottom -= 6;
        }
        self.draw_panels(pen, Frame { left: edge, top, right: width - edge, bottom })
    }

    /// The panels of each row, by their places. The first row is one panel where the others are then full.
    pub fn rows(&self) -> Vec<Range<usize>> {
        let (count, columns) = (self.panels.len(), self.columns.clamp(1, self.panels.len().max(1)));
        let alone = usize::from(columns > 1 && count % columns == 1);
        let first = (alone == 1).then_some(0..1);
        let rest = (alone..count).step_by(columns).map(|start| start..(start + columns).min(count));
        first.into_iter().chain(rest).collect()
    }

    fn draw_panels<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let rows = self.rows();
        let weight =
            |row: &Range<usize>| self.panels[row.clone()].iter().map(Panel::lines).max().unwrap_or(1);
        let all: i32 = rows.iter().map(weight).sum::<i32>().max(1);
        let free = frame.height() - BETWEEN * (rows.len() as i32 - 1);
        let mut top = frame.top;
        for row in &rows {
            let high = free * weight(row) / all;
            let count = row.len() as i32;
            // A last row that is not full keeps the width of the others.
            let columns = if count == 1 && row.start == 0 { 1 } else { self.columns.max(1) as i32 };
            let wide = (frame.width() - BESIDE * (columns - 1)) / columns;
            for (column, panel) in self.panels[row.clone()].iter().enumerate() {
                let left = frame.left + column as i32 * (wide + BESIDE);
                panel.draw(pen, Frame { left, top, right: left + wide, bottom: top + high })?;
            }
            top += high + BETWEEN;
        }
        Ok(())
    }
}

impl Panel {
    /// How much height it takes beside other panels, about one for each line of it.
    fn lines(&self) -> i32 {
        let lines = match self {
            Panel::Dots(dots) => dots.lines(),
            Panel::Forest(forest) => forest.lines(),
            _ => return 8,
        };
        // Title and axis.
        lines as i32 + 2
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
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

fn check(size: Size) -> Result<(), Error> {
    let fits = |length: u32| (64..=LARGEST).contains(&length);
    if fits(size.width) && fits(size.height) {
        return Ok(());
    }
    Err(Error(format!("{} × {} pixels; each is from 64 to {LARGEST}", size.width, size.height)))
}

/// Each pixel the mean of those drawn for it.
fn averaged(pixels: &[u8], size: Size) -> Vec<u8> {
    let (times, width) = (OVERSAMPLED as usize, size.width as usize);
    let mut averaged = Vec::with_capacity(width * size.height as usize * 3);
    for y in 0..size.height as usize {
        for x in 0..width {
            for channel in 0..3 {
                let pixel = |dx, dy| {
                    u32::from(pixels[((y * times + dy) * width * times + x * times + dx) * 3 + channel])
                };
                let sum: u32 = (0..times).flat_map(|dy| (0..times).map(move |dx| pixel(dx, dy))).sum();
                averaged.push(((sum + 2) / (OVERSAMPLED * OVERSAMPLED)) as u8);
            }
        }
    }
    averaged
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
