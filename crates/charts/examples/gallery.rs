//! Draws every kind of chart with awkward data into a directory, for inspection by eye:
//! `cargo run --release -p charts --example gallery -- DIR`.

use std::path::Path;

use charts::{
    Colour, Dots, DotsGroup, DotsRow, Figure, Forest, ForestGroup, Heatmap, Line, LineAxis, Lines, Pair,
    Panel, Point, Sample, Stack, StackRow, Strand, Strands, Survival,
};

const NAMES: [&str; 8] = [
    "candle",
    "tch",
    "ort",
    "tch-base",
    "a framework with a very long name, compiled",
    "candle (no cache)",
    "onnxruntime-genai",
    "reference",
];

/// Reproducible, irregular numbers.
fn wave(index: usize) -> f64 {
    ((index * 7919 % 101) as f64 / 101.0 - 0.5) + if index % 41 == 40 { 3.0 } else { 0.0 }
}

fn colours(count: usize) -> Vec<Colour> {
    let names: Vec<String> = NAMES[..count].iter().map(|&name| name.to_owned()).collect();
    charts::assign(&names, &["candle", "tch", "ort"])
}

fn dots(count: usize, rounds: usize, title: &str, factor: f64) -> Panel {
    let row = |(index, colour): (usize, Colour)| {
        let middle = factor * (30.0 + 9.0 * index as f64);
        let points: Vec<f64> = (0..rounds).map(|round| middle * (1.0 + 0.06 * wave(round + index))).collect();
        let absent = index == 2 && count > 3;
        DotsRow {
            label: if absent { format!("{} ✗ R5", NAMES[index]) } else { NAMES[index].into() },
            colour,
            median: (!absent).then_some(middle),
            points,
            note: if absent { "struck: not compared".into() } else { String::new() },
        }
    };
    let rows = colours(count).into_iter().enumerate().map(row).collect();
    let groups = vec![DotsGroup { label: String::new(), rows }];
    Panel::Dots(Dots { title: title.into(), hint: "lower is better".into(), groups })
}

/// Every pair; pairs more than two places apart have a winner.
fn forest(count: usize) -> Panel {
    let colours = colours(count);
    let pairs = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
    let pair = |(a, b): (usize, usize)| {
        let ratio = 1.0 + 0.06 * (b - a) as f64;
        Pair {
            label: format!("{} vs {}", NAMES[a], NAMES[b]),
            ratio: Some(ratio),
            interval: Some((ratio * 0.93, ratio * 1.08)),
            colour: (b > a + 1).then_some(colours[a]),
            note: String::new(),
        }
    };
    let groups = vec![ForestGroup { label: String::new(), pairs: pairs.map(pair).collect() }];
    let band = Some((1.0 / 1.02, 1.02));
    let sides = ["worse", "better"];
    Panel::Forest(Forest {
        title: "Tokens per second".into(),
        hint: "times better".into(),
        sides,
        groups,
        band,
    })
}

fn comparison(count: usize, rounds: usize) -> Figure {
    let titles =
        [("Tokens per second", 1.0), ("Time per token", 0.4), ("Total time", 20.0), ("Peak memory", 0.02)];
    Figure {
        title: format!("{} on smollm2-135m", NAMES[..count].join(", ")),
        subtitle: "smollm2-135m on AMD EPYC with 2 threads: prompts of 5 and 12 and 40 tokens, 32 new tokens each, 12 rounds".into(),
        answer: vec![
            "candle decodes 6 % faster than tch (4–8 %) and 7 % faster than ort (5–9 %).".into(),
            "candle needs least memory; ort starts first.".into(),
        ],
        panels: (count > 1)
            .then(|| forest(count))
            .into_iter()
            .chain(titles.iter().map(|(title, factor)| dots(count, rounds, title, *factor)))
            .collect(),
        columns: 2,
        note: vec!["Dot: one process; upright bar: median.".into()],
    }
}

fn lines(count: usize, axis: LineAxis, xs: &[f64]) -> Panel {
    let line = |(index, colour): (usize, Colour)| {
        let point = |(place, &x): (usize, &f64)| {
            let y = 20.0 + 5.0 * index as f64 + 3.0 * wave(place * 3 + index);
            Point { x, y, interval: Some((y - 1.0, y + 1.4)) }
        };
        Line { label: NAMES[index].into(), colour, points: xs.iter().enumerate().map(point).collect() }
    };
    let series = colours(count).into_iter().enumerate().map(line).collect();
    let y = LineAxis { from_zero: true, ..LineAxis::default() };
    Panel::Lines(Lines {
        title: "Tokens per second".into(),
        hint: "higher is better".into(),
        x: axis,
        y,
        series,
        shaded: None,
    })
}

fn samples(values: usize) -> Vec<Sample> {
    let sample = |(index, colour): (usize, Colour)| Sample {
        label: NAMES[index].into(),
        colour,
        values: (0..values).map(|place| 12.0 + 4.0 * index as f64 + 3.0 * wave(place + index)).collect(),
    };
    colours(5).into_iter().enumerate().map(sample).collect()
}

fn survival(values: usize) -> Panel {
    Panel::Survival(Survival { title: "Gaps".into(), hint: "ms".into(), samples: samples(values) })
}

/// Six processes each, all of different lengths.
fn strands() -> Panel {
    let line = |index: usize, process: usize| {
        let long = 4 + process * 2 + index;
        (1..=long).map(|at| (at as f64, 20.0 + 5.0 * index as f64 + 2.0 * wave(at * 5 + process))).collect()
    };
    let strand = |(index, colour): (usize, Colour)| Strand {
        label: NAMES[index].into(),
        colour,
        lines: (0..6).map(|process| line(index, process)).collect(),
    };
    Panel::Strands(Strands {
        title: "Latency".into(),
        hint: "one line a process".into(),
        y: LineAxis { from_zero: true, ..LineAxis::default() },
        series: colours(5).into_iter().enumerate().map(strand).collect(),
        shaded: Some((3.5, "warm-up".into())),
        ..Strands::default()
    })
}

/// One remainder is negative.
fn stack() -> Panel {
    let row = |index: usize, remainder: f64| StackRow {
        label: NAMES[index].into(),
        values: vec![40.0, 540.0, 30.0, 60.0, remainder],
        total: 670.0 + remainder,
    };
    let parts = ["framework", "parameters", "KV cache", "activations", "remainder"];
    Panel::Stack(Stack {
        title: "Peak memory by part".into(),
        hint: "MB".into(),
        parts: parts.map(str::to_owned).to_vec(),
        rows: vec![row(0, 20.0), row(4, -60.0), row(2, 400.0)],
    })
}

fn heatmap(index: usize) -> Panel {
    let cell = |row: usize, column: usize| {
        (row + column != 5).then_some(100.0 * (1 + row * index + 2 * column) as f64)
    };
    let values = (0..4).map(|row| (0..3).map(|column| cell(row, column)).collect()).collect();
    Panel::Heatmap(Heatmap {
        title: format!("{}: prompt tokens per second", NAMES[index]),
        x: ("prompt tokens".into(), ["128", "256", "512"].map(str::to_owned).to_vec()),
        y: ("batch".into(), ["1", "2", "4", "8"].map(str::to_owned).to_vec()),
        values,
        range: Some((100.0, 1200.0)),
        ..Heatmap::default()
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory")?;
    let (narrow, pasted) = (690, 1200);
    let save = |name: &str, figure: &Figure, width: u32| -> Result<(), Box<dyn std::error::Error>> {
        let (path, size) = (Path::new(&directory).join(name), figure.size(width));
        std::fs::write(path.with_extension("png"), figure.png(size)?)?;
        Ok(std::fs::write(path.with_extension("svg"), figure.svg(size)?)?)
    };
    for (count, rounds) in [(1, 1), (3, 12), (5, 6), (8, 30)] {
        save(&format!("comparison-{count}"), &comparison(count, rounds), pasted)?;
    }
    let named = |label: &str| LineAxis { label: label.into(), ..LineAxis::default() };
    let powers: Vec<f64> = (0..8).map(|power| f64::from(1 << power)).collect();
    let log = LineAxis { log: true, ticks: powers.clone(), ..named("batch") };
    let days: Vec<f64> = (0..40).map(|day| 1.79e9 + 86_400.0 * f64::from(day * 3)).collect();
    let time = LineAxis { time: true, ..named("UTC") };
    let panels = [
        ("lines", lines(3, named("iteration"), &[1.0, 2.0, 3.0, 4.0, 5.0]), narrow),
        ("lines-log", lines(8, log, &powers), narrow),
        ("lines-time", lines(3, time.clone(), &days), pasted),
        ("lines-one", lines(1, time, &days[..1]), narrow),
        ("survival", survival(3000), narrow),
        ("survival-few", survival(9), narrow),
        ("strands", strands(), narrow),
        ("forest", forest(4), narrow),
        ("stack", stack(), narrow),
        ("heatmap", heatmap(1), narrow),
    ];
    for (name, panel, width) in panels {
        save(name, &Figure::single(panel), width)?;
    }
    let panels = vec![heatmap(1), heatmap(2)];
    save("heatmaps", &Figure { title: "Sweep".into(), panels, columns: 2, ..Figure::default() }, pasted)
}
