//! Charts contain every label and value, in well-formed SVG and in a bitmap of the requested size.

use render::charts;
use render::charts::{
    Arm, Bar, Bars, Colour, Dots, DotsGroup, DotsRow, Estimate, Figure, Forest, ForestGroup, Group, Heatmap,
    Line, LineAxis, Lines, Optimised, Pair, Panel, Point, Sample, Size, Stack, StackRow, Strand, Strands,
    Survival,
};

const SIZE: Size = Size { width: 600, height: 400 };
const BLUE: Colour = Colour(0x00, 0x72, 0xB2);

fn bar(label: &str, value: Option<f64>) -> Bar {
    let points = value.into_iter().collect();
    Bar { label: label.into(), colour: BLUE, value, interval: None, points, note: "unsupported".into() }
}

fn bars(bars: Vec<Bar>) -> Panel {
    let groups = vec![Group { label: String::new(), bars }];
    Panel::Bars(Bars {
        title: "Tokens per second".into(),
        hint: "higher is better".into(),
        groups,
        ..Bars::default()
    })
}

fn sample(values: &[f64]) -> Sample {
    Sample { label: "tch".into(), colour: BLUE, values: values.to_vec() }
}

fn line(points: &[(f64, f64)]) -> Line {
    let points = points.iter().map(|&(x, y)| Point { x, y, interval: Some((y * 0.9, y * 1.1)) }).collect();
    Line { label: "candle".into(), colour: BLUE, points }
}

fn dots(medians: &[Option<f64>]) -> Panel {
    let row = |&median: &Option<f64>| DotsRow {
        label: "candle".into(),
        colour: BLUE,
        points: median.into_iter().flat_map(|median| [median, median * 1.1]).collect(),
        median,
        note: "struck: not compared".into(),
    };
    let groups = vec![DotsGroup { label: String::new(), rows: medians.iter().map(row).collect() }];
    Panel::Dots(Dots { title: "Dots".into(), hint: "higher is better".into(), groups })
}

fn pair(ratio: Option<f64>, interval: Option<(f64, f64)>) -> Pair {
    Pair { label: "candle vs ort".into(), ratio, interval, colour: Some(BLUE), note: "struck".into() }
}

fn forest(pairs: &[Pair]) -> Panel {
    let groups = vec![ForestGroup { label: "batch 4".into(), pairs: pairs.to_vec() }];
    Panel::Forest(Forest {
        title: "Pairs".into(),
        groups,
        band: Some((0.98, 1.02)),
        sides: ["worse", "better"],
        ..Forest::default()
    })
}

fn strands(lines: &[Vec<(f64, f64)>]) -> Panel {
    let series = vec![Strand { label: "candle".into(), colour: BLUE, lines: lines.to_vec() }];
    Panel::Strands(Strands { title: "Iterations".into(), series, ..Strands::default() })
}

/// One panel of every kind.
fn panels() -> Vec<Panel> {
    let stack = Stack {
        title: "Memory".into(),
        parts: vec!["weights".into(), "rest".into()],
        rows: vec![StackRow { label: "ort".into(), values: vec![500.0, -20.0], total: 480.0 }],
        ..Stack::default()
    };
    let heatmap = Heatmap {
        title: "Heat".into(),
        x: ("batch".into(), vec!["1".into(), "2".into()]),
        y: ("prompt".into(), vec!["128".into()]),
        values: vec![vec![Some(12.5), None]],
        ..Heatmap::default()
    };
    let lines = |axis: LineAxis| {
        let series = vec![line(&[(1.0, 10.0), (10.0, 20.0), (1000.0, 15.0)])];
        Panel::Lines(Lines { title: "Lines".into(), x: axis, series, ..Lines::default() })
    };
    vec![
        bars(vec![
            bar("candle", Some(41.5)),
            bar("a name as long as one that nobody would choose", Some(12.0)),
            bar("ort", None),
        ]),
        lines(LineAxis::default()),
        lines(LineAxis { log: true, ..LineAxis::default() }),
        lines(LineAxis { time: true, ..LineAxis::default() }),
        Panel::Survival(Survival { samples: vec![sample(&[1.0, 1.1, 1.1, 30.0])], ..Survival::default() }),
        Panel::Stack(stack),
        Panel::Heatmap(heatmap),
        dots(&[Some(41.5), None]),
        forest(&[pair(Some(1.2), Some((1.1, 1.3))), pair(None, None)]),
        strands(&[vec![(1.0, 3.0), (2.0, 2.0), (3.0, 2.1)], vec![(1.0, 4.0)]]),
    ]
}

/// The texts. Panics unless every tag is closed and every attribute quoted.
fn parsed(svg: &str) -> Vec<String> {
    let mut open = Vec::new();
    let mut texts = Vec::new();
    let mut rest = svg.trim_start_matches("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    while let Some(start) = rest.find('<') {
        texts.push(rest[..start].trim().to_owned());
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

fn decoded(file: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (info.width, info.height, pixels)
}

#[test]
fn every_label_and_value_is_in_the_drawing() {
    let svg = Figure::single(bars(vec![bar("candle", Some(41.5)), bar("ort", None)])).svg(SIZE).unwrap();
    let texts = parsed(&svg);
    for told in ["Tokens per second", "higher is better", "candle", "41.5", "ort", "unsupported"] {
        assert!(texts.iter().any(|text| text == told), "{told:?} is not in {texts:?}");
    }
}

#[test]
fn every_kind_is_well_formed_and_fills_a_bitmap_of_the_size_asked_for() {
    for panel in panels() {
        let figure = Figure::single(panel);
        parsed(&figure.svg(SIZE).unwrap());
        let (width, height, pixels) = decoded(&figure.png(SIZE).unwrap());
        assert_eq!((width, height), (SIZE.width, SIZE.height));
        let inked = pixels.chunks(3).filter(|pixel| pixel.iter().any(|&channel| channel < 0xE0)).count();
        assert!(inked > 200, "{inked} pixels of {figure:?}");
    }
}

#[test]
fn what_is_absent_or_no_number_is_not_drawn_as_one() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let strange = odd.map(|value| Bar { interval: Some((value, 1.0)), ..bar("x", Some(value)) });
    let mut panels = vec![bars(strange.to_vec()), bars(Vec::new()), bars(vec![bar("zero", Some(0.0))])];
    panels.push(Panel::Lines(Lines { series: vec![line(&[(f64::NAN, 1.0)])], ..Lines::default() }));
    panels.push(Panel::Lines(Lines { series: vec![line(&[(5.0, 5.0)])], ..Lines::default() }));
    panels.push(Panel::Survival(Survival { samples: vec![sample(&odd)], ..Survival::default() }));
    panels.push(Panel::Survival(Survival {
        samples: vec![sample(&[]), sample(&[2.0])],
        ..Survival::default()
    }));
    panels.push(dots(&odd.map(Some)));
    panels.push(dots(&[]));
    panels.push(forest(&odd.map(|value| pair(Some(value), Some((value, 1.0))))));
    panels.push(forest(&[pair(Some(0.0), None), pair(Some(-1.0), None), pair(Some(2.0), Some((0.0, 3.0)))]));
    panels.push(strands(&[odd.map(|value| (value, value)).to_vec(), Vec::new()]));
    panels.push(Panel::Heatmap(Heatmap { values: vec![vec![Some(f64::NAN)]], ..Heatmap::default() }));
    for panel in panels {
        let svg = Figure::single(panel).svg(SIZE).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn text_from_outside_stays_text() {
    let svg = Figure::single(bars(vec![bar("<script>&\"", Some(1.0))]))
        .inline_svg(460, "id", "<b>", "a & b")
        .unwrap();
    parsed(&svg);
    assert!(svg.contains("&lt;script&gt;") && svg.contains("&lt;b&gt;") && !svg.contains("<script"), "{svg}");
}

#[test]
fn an_inline_chart_takes_its_inks_from_the_page_and_tells_itself() {
    let svg =
        Figure::single(bars(vec![bar("tch", Some(3.0))])).inline_svg(460, "c1", "Speed", "Bars").unwrap();
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
fn a_forest_tells_ratio_and_interval_and_draws_nothing_of_who_has_none() {
    let pairs = [pair(Some(1.184), Some((1.152, 1.217))), pair(None, Some((1.0, 2.0)))];
    let texts = parsed(&Figure::single(forest(&pairs)).svg(SIZE).unwrap());
    for told in ["candle vs ort", "1.18× (1.15–1.22)", "struck", "batch 4", "← worse", "better →"] {
        assert!(texts.iter().any(|text| text == told), "{told:?} is not in {texts:?}");
    }
    let alone = Figure::single(forest(&[pair(None, Some((1.0, 2.0)))])).svg(SIZE).unwrap();
    assert!(!alone.contains("#0072B2"), "{alone}");
}

#[test]
fn who_is_struck_has_no_mark_among_the_dots() {
    let svg = Figure::single(dots(&[None])).svg(SIZE).unwrap();
    assert!(svg.contains("struck: not compared") && !svg.contains("<circle"), "{svg}");
}

#[test]
fn eight_contenders_have_eight_shapes_also_in_a_legend() {
    let names: Vec<String> = (0..8).map(|index| format!("contender {index}")).collect();
    let shapes = charts::assign(&names, &[]).into_iter().map(|Colour(red, green, blue)| {
        let colour = Colour(red, green, blue);
        let series = vec![Line { colour, ..line(&[(1.0, 1.0)]) }];
        let lines = Figure::single(Panel::Lines(Lines { series, ..Lines::default() })).svg(SIZE).unwrap();
        lines.replace(&format!("#{red:02X}{green:02X}{blue:02X}"), "a colour")
    });
    assert_eq!(shapes.collect::<std::collections::BTreeSet<_>>().len(), 8);
}

#[test]
fn each_repetition_has_a_line_of_its_own() {
    let lines = [vec![(1.0, 3.0), (2.0, 2.0)], vec![(1.0, 4.0), (2.0, 2.5), (3.0, 2.0)]];
    let svg = Figure::single(strands(&lines)).svg(SIZE).unwrap();
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
        panels: vec![forest(&[pair(Some(1.2), None)]), dots(&[Some(1.0)]), dots(&[Some(2.0)])],
        columns: 2,
        ..Figure::default()
    };
    assert_eq!(figure.rows(), [0..1, 1..3]);
    let three = Figure {
        panels: [&figure.panels[..1], &[dots(&[]), dots(&[]), dots(&[])]].concat(),
        ..figure.clone()
    };
    assert_eq!(three.rows(), [0..1, 1..2, 2..4]);
    let texts = parsed(&figure.svg(SIZE).unwrap());
    let told: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
    assert_eq!(told.iter().filter(|word| **word == "another").count(), 12, "{texts:?}");
}

/// Text sizes in pixels, in a scaled document.
fn text_sizes(svg: &str) -> Vec<f64> {
    let number = |text: &str| text[..text.find(['"', ' ']).unwrap()].parse::<f64>().unwrap();
    let after = |name: &str| number(svg.split_once(name).unwrap().1);
    let scale = after("width=\"") / after("viewBox=\"0 0 ");
    svg.split("font-size=\"").skip(1).map(|size| number(size) * scale).collect()
}

#[test]
fn the_smallest_text_of_a_picture_has_twenty_pixels() {
    for panel in panels() {
        let figure = Figure { title: "Title".into(), note: vec!["A note".into()], ..Figure::single(panel) };
        let sizes = text_sizes(&figure.svg(figure.size(1200)).unwrap());
        assert!(sizes.iter().all(|&size| size >= 20.0), "{sizes:?}");
    }
}

#[test]
fn the_band_of_equivalence_has_an_outline_that_stands_out() {
    let svg = Figure::single(forest(&[pair(Some(1.2), None)])).svg(SIZE).unwrap();
    // The colour of muted text, with a contrast of 6 to 1.
    assert!(svg.contains("fill=\"none\" stroke=\"#5B6066\""), "{svg}");
}

#[test]
fn parts_that_give_back_still_end_at_the_total() {
    let svg = Figure::single(panels().swap_remove(5)).svg(SIZE).unwrap();
    assert!(parsed(&svg).iter().any(|text| text == "480"), "{svg}");
}

#[test]
fn sizes_that_nobody_can_want_are_refused() {
    let figure = Figure::single(bars(Vec::new()));
    for (width, height) in [(0, 100), (100, 100_000)] {
        let error = figure.png(Size { width, height }).unwrap_err().to_string();
        assert!(error.contains("each is from 64 to 8192"), "{error}");
    }
}

#[test]
fn base_and_optimised_stand_together_under_what_the_optimisation_is_worth() {
    let of = |value, interval| Some(Estimate { value, interval });
    let run = Optimised {
        framework: "tch".into(),
        base: Some(Arm {
            tokens_per_second: of(20.0, None),
            ms_per_token: of(50.0, None),
            total_s: of(1.25, None),
            memory_mb: of(700.0, None),
        }),
        optimised: Some(Arm { tokens_per_second: of(44.4, Some((44.0, 45.0))), ..Arm::default() }),
        speedup: of(2.22, Some((2.1, 2.3))),
        memory_saved: of(-0.25, Some((-0.3, -0.2))),
    };
    let alone = Optimised { framework: "ort".into(), base: run.base, ..Optimised::default() };
    let size = Size { width: 1200, height: 675 };
    let figure = charts::optimisation_comparison(&[run, alone], "a case", "a note", &["tch"]);
    assert_eq!(figure.panels.len(), 4);
    let texts = parsed(&figure.svg(size).unwrap());
    for told in [
        "50.0",
        "1.25",
        "a case",
        "a note",
        "tch: 2.22× as fast (2.10–2.30)",
        "tch: 25 % more memory (20–30 %)",
        "ort",
        "base",
        "optimised",
        "44.4",
        "700",
        "not available",
    ] {
        assert!(texts.iter().any(|text| text == told), "{told:?} is not in {texts:?}");
    }
}

#[test]
fn an_axis_of_named_places_has_names_and_marks_and_shows_what_it_is_told_to() {
    let x = LineAxis {
        names: vec!["3f2a9c41".into(), "a81b5e0f".into()],
        marks: vec![(1.0, "library".into())],
        ..LineAxis::default()
    };
    let y = LineAxis { shown: vec![0.0, 1000.0], ..LineAxis::default() };
    let series = vec![line(&[(0.0, 500.0), (1.0, 501.0)])];
    let texts =
        parsed(&Figure::single(Panel::Lines(Lines { x, y, series, ..Lines::default() })).svg(SIZE).unwrap());
    for told in ["3f2a9c41", "a81b5e0f", "library", "1000"] {
        assert!(texts.iter().any(|text| text == told), "{told:?} is not in {texts:?}");
    }
}
