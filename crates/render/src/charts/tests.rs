//! Charts contain every label and value, in well-formed SVG and in a bitmap of the requested size.

use super::*;

const SIZE: Size = Size { width: 600, height: 400 };
const BLUE: Colour = Colour(0x00, 0x72, 0xB2);

fn dots(values: &[Option<f64>]) -> Panel {
    let row = |&value: &Option<f64>| Row {
        label: "candle".into(),
        colour: Some(BLUE),
        points: value.into_iter().flat_map(|value| [value, value * 1.1]).collect(),
        value,
        note: "struck: not compared".into(),
        ..Row::default()
    };
    let groups = vec![Group { label: String::new(), rows: values.iter().map(row).collect() }];
    let rows = Rows { axis: RowAxis::FromZero, groups };
    Panel::new("Tokens per second", "higher is better", Content::Rows(rows))
}

type Ratio = (Option<f64>, Option<(f64, f64)>);

fn forest(pairs: &[Ratio]) -> Panel {
    let row = |&(value, interval): &Ratio| Row {
        label: "candle vs ort".into(),
        colour: Some(BLUE),
        value,
        interval,
        note: "struck".into(),
        ..Row::default()
    };
    let groups = vec![Group { label: "batch 4".into(), rows: pairs.iter().map(row).collect() }];
    let axis = RowAxis::Ratio { sides: ["worse", "better"], band: Some((0.98, 1.02)) };
    Panel::new("Pairs", "", Content::Rows(Rows { axis, groups }))
}

fn lines(strands: &[Vec<(f64, f64)>], change: impl FnOnce(&mut Lines)) -> Panel {
    let point = |&(x, y): &(f64, f64)| Point { x, y, interval: Some((y * 0.9, y * 1.1)) };
    let strands = strands.iter().map(|points| points.iter().map(point).collect()).collect();
    let line = Line { label: "candle".into(), colour: BLUE, strands };
    let mut lines = Lines { series: vec![line], ..Lines::default() };
    change(&mut lines);
    Panel::new("Lines", "ms", Content::Lines(lines))
}

fn heatmap(value: f64) -> Panel {
    let heatmap = Heatmap {
        x: ("batch".into(), vec!["1".into(), "2".into()]),
        y: ("prompt".into(), vec!["128".into()]),
        values: vec![vec![Some(value), None]],
        range: None,
    };
    Panel::new("Heat", "", Content::Heatmap(heatmap))
}

fn panels() -> Vec<Panel> {
    let far = [vec![(1.0, 10.0), (10.0, 20.0), (1000.0, 15.0)]];
    vec![
        dots(&[Some(41.5), None]),
        forest(&[(Some(1.184), Some((1.152, 1.217))), (None, None)]),
        lines(&far, |_| ()),
        lines(&far, |lines| lines.x.log = true),
        lines(&[vec![(1.0, 3.0), (2.0, 2.0), (3.0, 2.1)], vec![(1.0, 4.0)]], |_| ()),
        heatmap(12.5),
    ]
}

fn svg(panel: Panel) -> String {
    Figure::single(panel).svg(SIZE).unwrap()
}

/// The texts. Panics unless every tag is closed and every attribute quoted.
fn parsed(svg: &str) -> Vec<&str> {
    let mut open = Vec::new();
    let mut texts = Vec::new();
    let mut rest = svg.trim_start_matches("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    while let Some(start) = rest.find('<') {
        texts.extend(Some(rest[..start].trim()).filter(|text| !text.is_empty()));
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{svg}");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
        rest = &rest[end + 1..];
    }
    assert_eq!(open, [""; 0]);
    texts
}

#[test]
fn every_label_and_value_is_in_the_drawing() {
    let named = lines(&[vec![(0.0, 500.0), (1.0, 501.0)]], |lines| {
        lines.x.names = vec!["3f2a9c41".into(), "a81b5e0f".into()];
        lines.x.marks = vec![(1.0, "library".into())];
        lines.y.shown = vec![0.0, 1000.0];
    });
    let told: Vec<String> =
        panels().into_iter().chain([named]).map(|panel| parsed(&svg(panel)).join(" | ")).collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    Tokens per second | higher is better | 0 | 10 | 20 | 30 | 40 | candle | 41.5 | candle | struck: not compared
    Pairs | 1 | 1.2 | better → | batch 4 | candle vs ort | 1.18x (1.15–1.22) | candle vs ort | struck
    Lines | ms | candle | 10 | 15 | 20 | 0 | 200 | 400 | 600 | 800 | 1000
    Lines | ms | candle | 10 | 15 | 20 | 1 | 10 | 100 | 1000
    Lines | ms | candle | 2 | 3 | 4 | 1 | 1.5 | 2 | 2.5 | 3
    Heat | prompt | batch → | 128 | 12.5 | – | 1 | 2
    Lines | ms | candle | library | 0 | 500 | 1000 | 3f2a9c41 | a81b5e0f
    ");
}

#[test]
fn the_side_of_worse_is_named_only_if_an_interval_reaches_it() {
    let with = |low: f64| svg(forest(&[(Some(1.2), Some((low, 1.5)))]));
    assert!(!with(1.0).contains("← worse"));
    assert!(with(0.9).contains("← worse"));
}

#[test]
fn a_label_that_is_too_long_for_its_line_is_above_its_marks_and_whole() {
    let mut panel = dots(&[Some(41.5)]);
    let Content::Rows(rows) = &mut panel.content else { panic!("{panel:?}") };
    rows.groups[0].rows[0].label = "a contender with a long name".into();
    let svg = Figure::single(panel).inline_svg(400, "id", "", "").unwrap();
    assert!(svg.contains("a contender with a long name"), "{svg}");
}

#[test]
fn every_kind_fills_a_bitmap_of_the_size_asked_for_and_its_smallest_text_has_twenty_pixels() {
    for panel in panels() {
        let figure = Figure { title: "Title".into(), note: vec!["A note".into()], ..Figure::single(panel) };
        let file = figure.png(SIZE).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (SIZE.width, SIZE.height));
        let inked = pixels.chunks(3).filter(|pixel| pixel.iter().any(|&channel| channel < 0xE0)).count();
        assert!(inked > 200, "{inked} pixels of {figure:?}");
        let sizes = text_sizes(&figure.svg(figure.size(1200)).unwrap());
        assert!(sizes.iter().all(|&size| size >= 20.0), "{sizes:?}");
    }
}

/// Text sizes in pixels, in a scaled document.
fn text_sizes(svg: &str) -> Vec<f64> {
    let number = |text: &str| text[..text.find(['"', ' ']).unwrap()].parse::<f64>().unwrap();
    let after = |name: &str| number(svg.split_once(name).unwrap().1);
    let scale = after("width=\"") / after("viewBox=\"0 0 ");
    svg.split("font-size=\"").skip(1).map(|size| number(size) * scale).collect()
}

#[test]
fn what_is_absent_or_no_number_is_not_drawn_as_one() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for panel in [
        dots(&odd.map(Some)),
        dots(&[]),
        dots(&[Some(0.0)]),
        forest(&odd.map(|value| (Some(value), Some((value, 1.0))))),
        forest(&[(Some(0.0), None), (Some(-1.0), None), (Some(2.0), Some((0.0, 3.0)))]),
        lines(&[vec![(f64::NAN, 1.0)]], |_| ()),
        lines(&[vec![(5.0, 5.0)]], |_| ()),
        lines(&[odd.map(|value| (value, value)).to_vec(), Vec::new()], |_| ()),
        heatmap(f64::NAN),
    ] {
        let svg = svg(panel);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    // A pair without a ratio has no colour, and a struck contender no mark.
    assert!(!svg(forest(&[(None, Some((1.0, 2.0)))])).contains("#0072B2"));
    let struck = svg(dots(&[None]));
    assert!(struck.contains("struck: not compared") && !struck.contains("<circle"), "{struck}");
}

#[test]
fn text_from_outside_stays_text() {
    let mut panel = dots(&[Some(1.0)]);
    panel.title = "<script>&\"".into();
    let svg = Figure::single(panel).inline_svg(460, "id", "<b>", "a & b").unwrap();
    parsed(&svg);
    assert!(svg.contains("&lt;script&gt;") && svg.contains("&lt;b&gt;") && !svg.contains("<script"), "{svg}");
}

#[test]
fn an_inline_chart_takes_its_inks_from_the_page_and_tells_itself() {
    let svg = Figure::single(dots(&[Some(3.0)])).inline_svg(460, "c1", "Speed", "Dots").unwrap();
    for part in [
        "role=\"img\"",
        "aria-labelledby=\"c1-title c1-description\"",
        "var(--ink)",
        "var(--surface)",
        "var(--contender-1)",
    ] {
        assert!(svg.contains(part), "{part} is not in {svg}");
    }
    assert!(!svg.contains("font-family") && !svg.contains("#1C1E21") && !svg.contains("#0072B2"), "{svg}");
}

#[test]
fn eight_contenders_have_eight_shapes_also_in_a_legend() {
    let names: Vec<String> = (0..8).map(|index| format!("contender {index}")).collect();
    let shapes = assign(&names, &[]).into_iter().map(|colour| {
        let drawn = lines(&[vec![(1.0, 1.0)]], |lines| lines.series[0].colour = colour);
        svg(drawn).replace(&colour.hex(), "a colour")
    });
    assert_eq!(shapes.collect::<std::collections::BTreeSet<_>>().len(), 8);
}

#[test]
fn each_repetition_has_a_line_of_its_own() {
    let strands = [vec![(1.0, 3.0), (2.0, 2.0)], vec![(1.0, 4.0), (2.0, 2.5), (3.0, 2.0)]];
    let svg = svg(lines(&strands, |lines| {
        lines.series[0].strands.iter_mut().flatten().for_each(|point| point.interval = None);
    }));
    let thin =
        svg.matches("<polyline fill=\"none\" opacity=\"1\" stroke=\"#0072B2\" stroke-width=\"1\"").count();
    assert_eq!(thin, 2, "{svg}");
}

#[test]
fn the_answer_is_never_cut_and_a_panel_alone_in_its_row_is_wide() {
    let long = "one word after another and no end of it ".repeat(12);
    let figure = Figure {
        title: "Title".into(),
        answer: vec![long.clone()],
        panels: vec![forest(&[(Some(1.2), None)]), dots(&[Some(1.0)]), dots(&[Some(2.0)])],
        columns: 2,
        ..Figure::default()
    };
    assert_eq!(figure.rows(), [0..1, 1..3]);
    let three = Figure {
        panels: [&figure.panels[..1], &[dots(&[]), dots(&[]), dots(&[])]].concat(),
        ..figure.clone()
    };
    assert_eq!(three.rows(), [0..1, 1..2, 2..4]);
    let svg = figure.svg(SIZE).unwrap();
    let told = parsed(&svg).join(" ");
    assert_eq!(told.split_whitespace().filter(|word| *word == "another").count(), 12, "{told}");
}

#[test]
fn the_band_of_equivalence_has_an_outline_that_stands_out() {
    // The colour of muted text, with a contrast of 6 to 1.
    assert!(svg(forest(&[(Some(1.2), None)])).contains("fill=\"none\" stroke=\"#5B6066\""));
}

#[test]
fn sizes_that_nobody_can_want_are_refused() {
    for (width, height) in [(0, 100), (100, 100_000)] {
        let error = Figure::single(dots(&[])).png(Size { width, height }).unwrap_err().to_string();
        assert!(error.contains("each is from 64 to 8192"), "{error}");
    }
}

// Colours.

const KNOWN: [&str; 3] = ["candle", "tch", "ort"];

fn assigned(names: &[&str]) -> Vec<Colour> {
    assign(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), &KNOWN)
}

#[test]
fn a_framework_keeps_its_colour_whoever_is_beside_it() {
    let all = assigned(&KNOWN);
    assert_eq!(assigned(&["ort", "candle"]), [all[2], all[0]]);
    assert_eq!(assigned(&["tch (KV cache)"]), [all[1]]);
}

#[test]
fn eight_are_told_apart_and_a_variant_leaves_the_framework_its_own() {
    let eight = assigned(&["tch-base", "tch", "a", "b", "c", "d", "e", "orthogonal"]);
    assert!((0..8).all(|i| (0..i).all(|j| eight[i] != eight[j])), "{eight:?}");
    assert_eq!(eight[1], CONTENDERS[1].light);
    assert_eq!(assigned(&["x"; 20]).len(), 20);
}

/// Relative luminance and contrast are defined in the Web Content Accessibility Guidelines 2.2.
fn luminance(Colour(red, green, blue): Colour) -> f64 {
    let linear = |channel: u8| {
        let share = f64::from(channel) / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
}

fn contrast(a: Colour, b: Colour) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn every_colour_stands_out_from_its_page() {
    for (name, tint) in named() {
        let (light, dark) =
            (contrast(tint.light, Colour(255, 255, 255)), contrast(tint.dark, Colour(0x1D, 0x20, 0x24)));
        assert!(light >= 3.0 && dark >= 3.0, "{name}: {light:.2} on white, {dark:.2} on the dark page");
    }
}
