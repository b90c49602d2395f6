//! A figure: panels on a grid under a title, rendered as SVG or PNG.

use std::ops::Range;

use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};

use crate::charts::bars::{Bars, Dots, Forest, Heatmap, SIDES};
use crate::charts::lines::{Lines, Stack, Strands, Survival};
use crate::charts::pen::{Drawn, FIGURE_TITLE, Frame, GRID, INK, MUTED, Pen, SMALL, SURFACE, Scale, tick};
use crate::charts::{self, Colour};

#[derive(Debug, Clone, Default)]
pub struct Figure {
    /// Above all panels; may be empty.
    pub title: String,
    /// The answer, one to four sentences below the title, in full contrast and never cut.
    pub answer: Vec<String>,
    /// The work and the machine; may be empty.
    pub subtitle: String,
    pub panels: Vec<Panel>,
    /// Panels per row.
    pub columns: usize,
    /// Below all panels, in paragraphs: how to read the figure, and its origin.
    pub note: Vec<String>,
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
    pub fn single(panel: Panel) -> Figure {
        Figure { panels: vec![panel], columns: 1, ..Figure::default() }
    }

    /// The size of a picture of this width, high enough that no texts touch.
    pub fn size(&self, width: u32) -> Size {
        let layout = self.layout_height(laid_out(width)) as u32;
        Size { width, height: layout * DRAWN / OVERSAMPLED }
    }

    /// A complete document, on white.
    pub fn svg(&self, size: Size) -> Result<String, Error> {
        let layout = Size { width: laid_out(size.width), height: laid_out(size.height) };
        let text = self.drawn_svg(layout)?;
        let attributes = |size: Size| format!("width=\"{}\" height=\"{}\"", size.width, size.height);
        let text = text.replacen(&attributes(layout), &attributes(size), 1);
        Ok(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}"))
    }

    /// An element for a page, as high as its panels need at this width. It scales with its box. Its text and
    /// line colours are the style variables `--ink`, `--muted`, `--grid` and `--surface`, and the others are
    /// from [`crate::charts::variables`]. Screen readers read `title` and `description`. `id` is unique in the page.
    pub fn inline_svg(&self, width: u32, id: &str, title: &str, description: &str) -> Result<String, Error> {
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
    pub fn png(&self, size: Size) -> Result<Vec<u8>, Error> {
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
            title: pen.wrapped(&self.title, (FIGURE_TITLE, true), width, 2),
            answer: self.answer.iter().flat_map(|line| wrapped(line, ANSWER, usize::MAX)).collect(),
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

    /// The indices of the panels in each row. Forest plots are as wide as the figure, and so is the first of
    /// the other panels if that makes the rows below it full.
    pub fn rows(&self) -> Vec<Range<usize>> {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let is_wide = |panel: &Panel| matches!(panel, Panel::Forest(_));
        let others = self.panels.iter().filter(|panel| !is_wide(panel)).count();
        let mut is_first_alone = columns > 1 && others % columns == 1;
        let mut rows: Vec<Range<usize>> = Vec::new();
        let mut is_full = true;
        for (place, panel) in self.panels.iter().enumerate() {
            let is_alone = is_wide(panel) || std::mem::take(&mut is_first_alone);
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

// A panel: one chart of any kind.

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

// Rows over a common axis: a label on the left, marks along the axis, a figure on the right, headings above
// groups.

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
