//! The page of the history: performance over time, for each machine and case by itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use charts::{Figure, Line, LineAxis, Lines, Panel, Point, number};
use history::Record;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::markup::{self, Cell, Chart, Table};
use super::{pictures, pictures_of, save, study};
use crate::failure::{Failure, Result};

/// Records that may be held against each other.
struct Group<'a> {
    machine: &'a history::Machine,
    case: &'a history::Case,
    /// By time.
    records: Vec<&'a Record>,
}

/// Panels in the picture: the groups with the most runs.
const PANELS: usize = 4;

/// What is told over time.
const METRICS: [(&str, &str, &str); 3] = [
    ("throughput", "Tokens per second", "higher is better"),
    ("latency", "Time per token", "ms, lower is better"),
    ("peak_memory", "Peak memory", "GB, lower is better"),
];

/// Makes `history.html` and `performance_over_time.png` and `.svg` in `directory` from the history at `path`.
pub(super) fn write(path: &Path, directory: &Path) -> Result<Vec<PathBuf>> {
    let read = ::history::read(path).map_err(|e| Failure::usage(e.to_string()))?;
    if read.records.is_empty() {
        let reason = "it has no records; measure something first, or name another place with --results-dir";
        return Err(Failure::usage(format!("no history in {}: {reason}", path.display())));
    }
    let groups = groups(&read.records);
    let page = save(directory, "history.html", html(&groups, read.skipped.len())?.as_bytes())?;
    let drawn = pictures_of(directory, "performance_over_time", &over_time(&groups))?;
    Ok([vec![page], drawn].concat())
}

/// Those of one machine, model, precision and shape of work; those with the most runs first.
fn groups<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for record in records {
        let fits = |group: &&mut Group<'_>| {
            group.machine.fingerprint == record.machine.fingerprint && group.case == &record.case
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.records.push(record),
            None => {
                groups.push(Group { machine: &record.machine, case: &record.case, records: vec![record] })
            }
        }
    }
    for group in &mut groups {
        group.records.sort_by(|a, b| a.time.cmp(&b.time));
    }
    groups.sort_by_key(|group| std::cmp::Reverse((group.runs(), group.records.len())));
    groups
}

fn seconds(record: &Record) -> Option<f64> {
    Some(OffsetDateTime::parse(&record.time, &Rfc3339).ok()?.unix_timestamp() as f64)
}

impl Group<'_> {
    fn runs(&self) -> usize {
        self.records.iter().map(|record| &record.run).collect::<BTreeSet<_>>().len()
    }

    fn title(&self) -> String {
        let case = self.case;
        let threads = if case.threads == 1 { "thread" } else { "threads" };
        let batch = if case.batch > 1 { format!(", batch {}", case.batch) } else { String::new() };
        let context = if case.context > 0 { format!(", after {}", case.context) } else { String::new() };
        let cache = if case.kv_cache == "off" { ", no KV cache" } else { "" };
        let jit = if case.jit { "" } else { ", no JIT" };
        let prompts: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
        format!(
            "{} {} on {}, {} {threads}{batch}, {} + {} tokens{context}{cache}{jit}",
            case.model,
            case.precision,
            case.device,
            case.threads,
            prompts.join("/"),
            case.new_tokens
        )
    }

    fn lines(&self, title: &str, hint: &str, metric: &str) -> Lines {
        let names = study::frameworks(self.records.iter().map(|record| record.framework.clone()));
        let colours = pictures::colours(&names);
        let line = |name: &String| Line {
            label: name.clone(),
            colour: colours[name],
            points: self
                .records
                .iter()
                .filter(|record| record.framework == *name)
                .filter_map(|record| {
                    let figure = record.metrics.get(metric)?;
                    Some(Point { x: seconds(record)?, y: figure.median, interval: figure.interval })
                })
                .collect(),
        };
        Lines {
            title: title.to_owned(),
            hint: hint.to_owned(),
            x: LineAxis { label: "UTC".into(), time: true, ..LineAxis::default() },
            y: LineAxis { from_zero: true, ..LineAxis::default() },
            series: names.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
            shaded: None,
        }
    }

    fn table(&self) -> Table {
        let row = |record: &&Record| {
            let commit: String = record.git_commit.as_deref().unwrap_or("–").chars().take(9).collect();
            let modified = if record.git_modified == Some(true) { "+" } else { "" };
            let figure = |(metric, _, _): &(&str, &str, &str)| match record.metrics.get(*metric) {
                Some(figure) => Cell {
                    main: number(figure.median),
                    small: figure
                        .interval
                        .map_or(String::new(), |(low, high)| format!("{} – {}", number(low), number(high))),
                },
                None => {
                    Cell { main: "–".into(), small: record.reasons.first().cloned().unwrap_or_default() }
                }
            };
            let time =
                record.time.split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
            let parity = record
                .parity
                .as_ref()
                .map_or("not checked", |parity| if parity.agrees { "ok" } else { "BROKEN" });
            [time.into(), format!("{commit}{modified}").into(), record.framework.clone().into()]
                .into_iter()
                .chain(METRICS.iter().map(figure))
                .chain([
                    record.rounds.to_string().into(),
                    parity.into(),
                    record.state.replace('_', " ").into(),
                ])
                .collect()
        };
        let titles = [
            "Time (UTC)",
            "Commit",
            "Framework",
            "tok/s",
            "ms a token",
            "Peak (GB)",
            "Rounds",
            "Parity",
            "State",
        ];
        Table {
            caption:
                "Medians over processes with their 95 % intervals; a + behind a commit: with local changes"
                    .into(),
            columns: titles.map(str::to_owned).to_vec(),
            rows: self.records.iter().rev().map(row).collect(),
            figures: true,
        }
    }
}

fn html(groups: &[Group<'_>], skipped: usize) -> Result<String> {
    let runs =
        study::frameworks(groups.iter().flat_map(|group| &group.records).map(|record| record.run.clone()))
            .len();
    let mut body = format!(
        "<header>\n<h1>Performance over time</h1>\n<p class=\"muted\">{runs} runs; what differs in machine, model or settings is kept apart</p>\n"
    );
    if skipped > 0 {
        body += &markup::paragraph(&format!(
            "{skipped} lines of the history could not be read and are not here."
        ));
    }
    body += "</header>\n";
    for (index, group) in groups.iter().enumerate() {
        let machine = group.machine;
        let place = format!(
            "{} ({}), {} cores, {:.0} GB, {}; fingerprint {}",
            machine.host,
            machine.cpu,
            machine.available_cores,
            machine.memory_bytes as f64 / 1e9,
            machine.os.as_deref().unwrap_or("unknown system"),
            machine.fingerprint
        );
        let chart = |(metric, title, hint): &(&str, &str, &str)| Chart {
            id: format!("{metric}-{index}"),
            title: format!("{title} over time"),
            description: "A line for each framework over the time of its runs, with 95 % intervals; the table has the figures",
            figure: Figure::single(Panel::Lines(group.lines(title, hint, metric))),
            height: 300,
            table: None,
        };
        // One run is no course of time: its figures are in the table.
        let charts: Vec<Chart> = METRICS.iter().filter(|_| group.runs() > 1).map(chart).collect();
        let title = group.title();
        let content = markup::paragraph(&place)
            + &markup::charts(&charts)?
            + &markup::details("Every run", &group.table().html());
        body += &markup::section(&title, &content);
    }
    Ok(markup::document("Performance over time", &body))
}

/// Tokens per second over time, of the cases that were run most often.
pub(crate) fn performance_over_time(records: &[&Record]) -> Figure {
    over_time(&groups(records.iter().copied()))
}

fn over_time(groups: &[Group<'_>]) -> Figure {
    let repeated = groups.iter().filter(|group| group.runs() > 1).count();
    let shown: Vec<&Group<'_>> = groups.iter().take(repeated.clamp(1, PANELS)).collect();
    let panel = |group: &&Group<'_>| {
        let hint = format!("tok/s · {} {}", group.machine.host, group.machine.cpu);
        Panel::Lines(group.lines(&group.title(), &hint, "throughput"))
    };
    let left = groups.len() - shown.len();
    let more = if left > 0 { format!(" {left} more cases are in history.html.") } else { String::new() };
    Figure {
        title: "Performance over time".into(),
        subtitle: "Decoded tokens per second, higher is better".into(),
        panels: shown.iter().map(panel).collect(),
        columns: if shown.len() > 1 { 2 } else { 1 },
        note: format!(
            "Point: median of a run's processes; whisker: its 95 % interval, where there are rounds enough.{more}"
        ),
    }
}
