//! A figure: panels on a grid under a title, rendered as SVG or PNG.

use std::ops::Range;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::charts::heatmap::Heatmap;
use crate::charts::lines::Lines;
use crate::charts::pen::{Drawn, FIGURE_TITLE, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE};
use crate::charts::rows::Rows;
use crate::charts::{self, Colour};

#[derive(Debug, Clone, Default)]
pub(crate) struct Figure {
    /// Above all panels; may be empty. A picture has no code: backticks are left out.
    pub(crate) title: String,
    /// The answer, one to four sentences below the title, in full contrast and never cut.
    pub(crate) answer: Vec<String>,
    /// The work and the machine; may be empty.
    pub(crate) subtitle: String,
    pub(crate) panels: Vec<Panel>,
    pub(crate) columns: usize,
    /// Below all panels, in paragraphs: how to read the figure, and its origin.
    pub(crate) note: Vec<String>,
}

/// In pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot draw a chart: {0}")]
pub(crate) struct Error(String);

/// A layout pixel becomes 3 pixels of the drawing in each direction, and 2 of the drawing become one of the
/// bitmap, which smooths edges. So the smallest text of a picture has 21 pixels.
const DRAWN: u32 = 3;

const OVERSAMPLED: u32 = 2;

const LARGEST: u32 = 8192;

/// Size of the answer's text, and the vertical and horizontal space between panels, in pixels.
const ANSWER: i32 = 17;

const BETWEEN: i32 = 24;

const BESIDE: i32 = 36;

/// The texts around the panels, divided into lines.
struct Texts {
    title: Vec<String>,
    answer: Vec<String>,
    subtitle: Vec<String>,
    note: Vec<String>,
}

impl Figure {
    /// A figure of one panel, without a title.
    pub(crate) fn single(panel: Panel) -> Figure {
        Figure { panels: vec![panel], columns: 1, ..Figure::default() }
    }

    /// The size of a picture of this width, high enough that no texts touch.
    pub(crate) fn size(&self, width: u32) -> Size {
        let layout = self.layout_height(laid_out(width)) as u32;
        Size { width, height: layout * DRAWN / OVERSAMPLED }
    }

    /// A complete document, on white.
    pub(crate) fn svg(&self, size: Size) -> Result<String, Error> {
        let layout = Size { width: laid_out(size.width), height: laid_out(size.height) };
        let text = self.drawn_svg(layout)?;
        let attributes = |size: Size| format!("width=\"{}\" height=\"{}\"", size.width, size.height);
        let text = text.replacen(&attributes(layout), &attributes(size), 1);
        Ok(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}"))
    }

    /// An element for a page, as high as its panels need at this width. It scales with its box. Its text and
    /// line colours are the style variables `--ink`, `--muted`, `--grid` and `--surface`, and the others are
    /// from [`crate::charts::variables`]. Screen readers read `title` and `description`. `id` is unique in the page.
    pub(crate) fn inline_svg(
        &self,
        width: u32,
        id: &str,
        title: &str,
        description: &str,
    ) -> Result<String, Error> {
        let size = Size { width, height: self.layout_height(width) as u32 };
        let text = self.drawn_svg(size)?;
        let body = text.split_once('>').map_or("", |(_, body)| body);
        let mut body = body.to_owned();
        for (ink, variable) in [(INK, "ink"), (MUTED, "muted"), (GRID, "grid"), (SURFACE, "surface")] {
            let RGBColor(red, green, blue) = ink;
            body = body
                .replace(&format!("\"#{red:02X}{green:02X}{blue:02X}\""), &format!("\"var(--{variable})\""));
        }
        body = charts::with_variables(body);
        body = body.replace(&format!("font-family=\"{}\" ", charts::FAMILY), "");
        let Size { width, height } = size;
        let (title, description) = (escaped(title), escaped(description));
        Ok(format!(
            "<svg viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-description\">\n<title id=\"{id}-title\">{title}</title>\n\
             <desc id=\"{id}-description\">{description}</desc>{body}"
        ))
    }

    /// A PNG file of exactly this size.
    pub(crate) fn png(&self, size: Size) -> Result<Vec<u8>, Error> {
        check(size)?;
        charts::register();
        let (wide, high) = (size.width * OVERSAMPLED, size.height * OVERSAMPLED);
        let mut pixels = vec![0_u8; wide as usize * high as usize * 3];
        {
            let root = BitMapBackend::with_buffer(&mut pixels, (wide, high)).into_drawing_area();
            let layout = Size { width: laid_out(size.width), height: laid_out(size.height) };
            let drawn = self.draw(&Pen { area: &root, scale: DRAWN as i32 }, layout);
            drawn.and_then(|()| root.present()).map_err(|e| Error(e.to_string()))?;
        }
        let averaged = averaged(&pixels, size);
        let mut file = Vec::new();
        let mut picture = png::Encoder::new(&mut file, size.width, size.height);
        picture.set_color(png::ColorType::Rgb);
        picture.set_depth(png::BitDepth::Eight);
        picture.set_compression(png::Compression::High);
        let written = picture.write_header().and_then(|mut writer| {
            writer.write_image_data(&averaged)?;
            writer.finish()
        });
        written.map_err(|e| Error(e.to_string()))?;
        Ok(file)
    }

    fn drawn_svg(&self, size: Size) -> Result<String, Error> {
        check(size)?;
        charts::register();
        let mut text = String::new();
        {
            let root = SVGBackend::with_string(&mut text, (size.width, size.height)).into_drawing_area();
            let drawn = self.draw(&Pen { area: &root, scale: 1 }, size);
            drawn.and_then(|()| root.present()).map_err(|e| Error(e.to_string()))?;
        }
        Ok(text)
    }

    /// The height of the layout at this width.
    fn layout_height(&self, width: u32) -> i32 {
        charts::register();
        let mut unused = String::new();
        // Only its font is used, for measuring text.
        let area = SVGBackend::with_string(&mut unused, (1, 1)).into_drawing_area();
        let (pen, width) = (Pen { area: &area, scale: 1 }, width as i32 - 2 * self.edge());
        let texts = self.texts(&pen, width);
        let rows: i32 = self.rows().iter().map(|row| self.row_height(&pen, row, width)).sum();
        let between = BETWEEN * (self.rows().len() as i32 - 1).max(0);
        2 * self.edge() + self.above(&texts) + rows + between + self.below(&texts)
    }

    fn is_single(&self) -> bool {
        self.title.is_empty() && self.panels.len() == 1
    }

    fn edge(&self) -> i32 {
        if self.is_single() { 6 } else { 24 }
    }

    fn texts<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, width: i32) -> Texts {
        let wrapped = |text: &String, size: i32, lines: usize| pen.wrapped(text, (size, false), width, lines);
        Texts {
            title: pen.wrapped(&self.title.replace('`', ""), (FIGURE_TITLE, true), width, 2),
            answer: self
                .answer
                .iter()
                .flat_map(|line| wrapped(&line.replace('`', ""), ANSWER, usize::MAX))
                .collect(),
            subtitle: wrapped(&self.subtitle, SMALL, 3),
            note: self.note.iter().flat_map(|line| wrapped(line, SMALL, 3)).collect(),
        }
    }

    /// The height from the edge to the panels.
    fn above(&self, texts: &Texts) -> i32 {
        let title = texts.title.len() as i32 * (FIGURE_TITLE + 8);
        let answer = texts.answer.len() as i32 * (ANSWER + 7);
        let space = if self.is_single() { 0 } else { 12 };
        title + answer + texts.subtitle.len() as i32 * (SMALL + 5) + space
    }

    /// The height from the panels to the edge.
    fn below(&self, texts: &Texts) -> i32 {
        texts.note.len() as i32 * (SMALL + 5) + if self.is_single() { 0 } else { 6 }
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, size: Size) -> Drawn<DB> {
        let (width, height, edge) = (size.width as i32, size.height as i32, self.edge());
        pen.fill(Frame { left: 0, top: 0, right: width, bottom: height }, SURFACE)?;
        let texts = self.texts(pen, width - 2 * edge);
        let mut top = edge;
        for line in &texts.title {
            pen.bold(line, (edge, top), FIGURE_TITLE)?;
            top += FIGURE_TITLE + 8;
        }
        for line in &texts.answer {
            pen.text(line, (edge, top), ANSWER, INK, (HPos::Left, VPos::Top))?;
            top += ANSWER + 7;
        }
        let bottom = height - edge - self.below(&texts);
        let note = height - edge - texts.note.len() as i32 * (SMALL + 5) + 5;
        for (lines, start) in [(&texts.subtitle, top), (&texts.note, note)] {
            for (index, line) in lines.iter().enumerate() {
                let y = start + index as i32 * (SMALL + 5);
                pen.text(line, (edge, y), SMALL, MUTED, (HPos::Left, VPos::Top))?;
            }
        }
        let top = edge + self.above(&texts);
        self.draw_panels(pen, Frame { left: edge, top, right: width - edge, bottom })
    }

    /// The indices of the panels in each row. Ratios are as wide as the figure, and so is the first of
    /// the other panels if that makes the rows below it full.
    pub(crate) fn rows(&self) -> Vec<Range<usize>> {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let others = self.panels.iter().filter(|panel| !panel.is_wide()).count();
        let mut is_first_alone = columns > 1 && others % columns == 1;
        let mut rows: Vec<Range<usize>> = Vec::new();
        let mut is_full = true;
        for (place, panel) in self.panels.iter().enumerate() {
            let is_alone = panel.is_wide() || std::mem::take(&mut is_first_alone);
            match rows.last_mut().filter(|row| !is_full && !is_alone && row.len() < columns) {
                Some(row) => row.end = place + 1,
                None => rows.push(place..place + 1),
            }
            is_full = is_alone;
        }
        rows
    }

    /// The width of each panel of a row. A single panel is as wide as the figure.
    fn panel_width(&self, row: &Range<usize>, width: i32) -> i32 {
        let columns = if row.len() == 1 { 1 } else { self.columns.max(1) as i32 };
        (width - BESIDE * (columns - 1)) / columns
    }

    fn row_height<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, row: &Range<usize>, width: i32) -> i32 {
        let wide = self.panel_width(row, width);
        self.panels[row.clone()].iter().map(|panel| panel.height(pen, wide)).max().unwrap_or(0)
    }

    fn draw_panels<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let rows = self.rows();
        let heights: Vec<i32> = rows.iter().map(|row| self.row_height(pen, row, frame.width())).collect();
        let all: i32 = heights.iter().sum::<i32>().max(1);
        let free = frame.height() - BETWEEN * (rows.len() as i32 - 1);
        let mut top = frame.top;
        for (row, height) in rows.iter().zip(heights) {
            let high = free * height / all;
            let wide = self.panel_width(row, frame.width());
            for (column, panel) in self.panels[row.clone()].iter().enumerate() {
                let left = frame.left + column as i32 * (wide + BESIDE);
                panel.draw(pen, Frame { left, top, right: left + wide, bottom: top + high })?;
            }
            top += high + BETWEEN;
        }
        Ok(())
    }
}

/// The size in layout pixels for a size in picture pixels.
fn laid_out(pixels: u32) -> u32 {
    (pixels * OVERSAMPLED).div_ceil(DRAWN)
}

fn check(size: Size) -> Result<(), Error> {
    let fits = |length: u32| (64..=LARGEST).contains(&length);
    if fits(size.width) && fits(size.height) {
        return Ok(());
    }
    Err(Error(format!("{} × {} pixels; each is from 64 to {LARGEST}", size.width, size.height)))
}

/// Each pixel becomes the mean of the pixels drawn for it.
fn averaged(pixels: &[u8], size: Size) -> Vec<u8> {
    let (times, width) = (OVERSAMPLED as usize, size.width as usize);
    let mut averaged = Vec::with_capacity(width * size.height as usize * 3);
    let mut sums = vec![0; width * 3];
    for rows in pixels.chunks_exact(times * times * width * 3) {
        sums.fill(0);
        for row in rows.chunks_exact(times * width * 3) {
            for (sums, drawn) in sums.chunks_exact_mut(3).zip(row.chunks_exact(times * 3)) {
                for pixel in drawn.chunks_exact(3) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, &channel)| *sum += u32::from(channel));
                }
            }
        }
        averaged.extend(sums.iter().map(|sum| ((sum + 2) / (OVERSAMPLED * OVERSAMPLED)) as u8));
    }
    averaged
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

// The legend: the colour and mark of each series.

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

// A panel: one chart of any kind, with its title.

#[derive(Debug, Clone)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// Next to the title: the unit and the better direction.
    pub(crate) hint: String,
    pub(crate) content: Content,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Rows(Rows),
    Lines(Lines),
    Heatmap(Heatmap),
}

/// Height of lines with their legend.
const LINES: i32 = 222;

impl Panel {
    pub(crate) fn new(title: impl Into<String>, hint: impl Into<String>, content: Content) -> Panel {
        Panel { title: title.into(), hint: hint.into(), content }
    }

    /// A height at which the texts do not touch.
    fn height<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, width: i32) -> i32 {
        let below = match &self.content {
            Content::Rows(rows) => rows.height(pen, width),
            Content::Lines(_) => LINES,
            Content::Heatmap(heatmap) => heatmap.height(),
        };
        pen.title_height(&self.title, &self.hint, width) + below
    }

    fn draw<DB: DrawingBackend>(&self, pen: &Pen<'_, DB>, frame: Frame) -> Drawn<DB> {
        let frame = pen.titled(frame, &self.title, &self.hint)?;
        match &self.content {
            Content::Rows(rows) => rows.draw(pen, frame),
            Content::Lines(lines) => lines.draw(pen, frame),
            Content::Heatmap(heatmap) => heatmap.draw(pen, frame),
        }
    }

    /// Whether it is as wide as the figure.
    fn is_wide(&self) -> bool {
        matches!(&self.content, Content::Rows(rows) if rows.is_ratio())
    }
}
