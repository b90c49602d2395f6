//! The table of the answer. Up to three contenders have a column each; more have a row each, the best first.

use comparison::judge::Metric;
use comparison::judge::report::{Kind, Report, Row, State};
use comparison::plan::KernelCache;

use super::{Mark, Standing, cause, has_verdicts, listed, rounds, split};
use crate::table::{Cell, Column, Table, Tone};
use crate::words::{self, findings};

/// Most contenders with a column each.
const FEW: usize = 3;

/// The heading of their names.
const CONTENDER: &str = "Contender";

/// Characters of a name, where longer ones take the place of figures.
const NAME: usize = 22;

/// The title of what is no metric, and its text.
type Text = (&'static str, fn(&Row) -> String);

const TEXTS: [Text; 2] = [("Precision", Row::precision_words), ("Parity", parity)];

pub(crate) fn are_rows(report: &Report, width: usize) -> bool {
    report.rows.len() > FEW || by_metric(report).bracketed().terminal_width() > width
}

/// The table with every column and mark, for a page. Marks compare with the best, or with a baseline.
pub(crate) fn in_full(report: &Report, baseline: Option<&str>) -> Table {
    let mut table = grid(report, usize::MAX);
    let mark = |cell: &mut Cell, standing: &Standing<'_>, row: &Row| match baseline {
        None => cell.small = mark(report, standing, row).text(),
        Some(baseline) => {
            let is_marked = is_marked(report, standing, row);
            cell.small = if is_marked { standing.than(&row.framework, baseline) } else { String::new() };
            // The best of all is of no interest there.
            cell.tone = if cell.tone == Tone::Clear { Tone::Plain } else { cell.tone };
        }
    };
    if !are_rows(report, usize::MAX) {
        for (cells, metric) in table.rows.iter_mut().zip(report.table_metrics()) {
            let standing = Standing::of_report(report, metric);
            cells[1..].iter_mut().zip(&report.rows).for_each(|(cell, row)| mark(cell, &standing, row));
        }
        return table;
    }
    let first = usize::from(has_verdicts(report));
    let deciding = Standing::of_report(report, Metric::deciding(report.plan.work.kind()));
    let metrics = [deciding.metric].into_iter().chain(others(report, deciding.metric));
    for (column, metric) in (first + 1..).zip(metrics) {
        let standing = Standing::of_report(report, metric);
        table.columns[column].title = metric.title().into();
        let rows = table.rows.iter_mut().zip(sorted(report, &deciding));
        rows.for_each(|(cells, row)| mark(&mut cells[column], &standing, row));
    }
    if first > 0 {
        // A row is headed by its name.
        table.columns.swap(0, 1);
        table.columns[1].title = "Rank".into();
        table.rows.iter_mut().for_each(|row| row.swap(0, 1));
    }
    table
}

/// The table, at most as wide as this where that is possible.
pub(crate) fn grid(report: &Report, width: usize) -> Table {
    let table = if are_rows(report, width) { by_contender(report, width) } else { by_metric(report) };
    Table { signs: true, ..table }
}

fn by_metric(report: &Report) -> Table {
    let mut table = Table::of([""], report.rows.iter().map(title));
    for metric in report.table_metrics() {
        let standing = Standing::of_report(report, metric);
        let cells = report.rows.iter().map(|row| cell(report, &standing, row));
        table.push([Cell::of_metric(metric)], cells);
    }
    for (title, of) in TEXTS {
        table.push([title], report.rows.iter().map(|row| toned(row, of(row).into())));
    }
    table
}

/// A row for each contender, with as many columns as fit: names are shortened only where that leaves room for more.
fn by_contender(report: &Report, width: usize) -> Table {
    let deciding = Standing::of_report(report, Metric::deciding(report.plan.work.kind()));
    let rows = sorted(report, &deciding);
    let all = columns(report, &deciding, &rows);
    let least = usize::from(has_verdicts(report)) + 2;
    let with_more = (least..=all.len()).rev().flat_map(|count| [(count, usize::MAX), (count, NAME)]);
    let narrower = (1..NAME).rev().map(|name| (least, name));
    with_more
        .chain(narrower)
        .map(|(count, name)| table(&all[..count], name))
        .find(|table| table.bracketed().terminal_width() <= width)
        .unwrap_or_else(|| table(&all[..least], 1))
}

/// These columns, with names of at most so many characters.
fn table(columns: &[(Column, Vec<Cell>)], name: usize) -> Table {
    let mut table = Table::new(columns.iter().map(|(column, _)| column.clone()));
    for at in 0..columns.first().map_or(0, |(_, cells)| cells.len()) {
        table.add(columns.iter().map(|(column, cells)| match column.title.main == CONTENDER {
            true => Cell { main: shortened(&cells[at].main, name), ..cells[at].clone() },
            false => cells[at].clone(),
        }));
    }
    table
}

/// Rank, name and first question, then what else fits, the most asked for first.
fn columns(report: &Report, deciding: &Standing<'_>, rows: &[&Row]) -> Vec<(Column, Vec<Cell>)> {
    let mut columns = Vec::new();
    if has_verdicts(report) {
        columns.push((Column::left(""), rows.iter().map(|row| rank(deciding, row).into()).collect()));
    }
    let names = rows.iter().map(|row| toned(row, title(row).into()));
    columns.push((Column::left(CONTENDER), names.collect()));
    columns.push(figures(report, deciding, rows));
    let others = others(report, deciding.metric).into_iter();
    columns.extend(others.map(|metric| figures(report, &Standing::of_report(report, metric), rows)));
    for (title, of) in TEXTS {
        let texts: Vec<String> = rows.iter().map(|row| of(row)).collect();
        if texts.iter().any(|text| *text != texts[0]) {
            let cells = rows.iter().zip(texts).map(|(row, text)| toned(row, text.into()));
            columns.push((Column::right(title), cells.collect()));
        }
    }
    columns
}

/// A metric of every contender; only that of the first question, or where both ends matter, has marks.
fn figures(report: &Report, standing: &Standing<'_>, rows: &[&Row]) -> (Column, Vec<Cell>) {
    let is_first = standing.metric == Metric::deciding(report.plan.work.kind());
    let of = |row: &&Row| {
        let cell = cell(report, standing, row);
        match is_first {
            true if !row.state.has_figures() => row.state.words().into(),
            true => cell,
            false => Cell { small: String::new(), ..cell },
        }
    };
    (Column::right(Cell::unit_below(standing.metric.short_title())), rows.iter().map(of).collect())
}

/// The metrics after the first question, the most asked for first; those that follow from another last.
fn others(report: &Report, deciding: Metric) -> Vec<Metric> {
    let kind = report.plan.work.kind();
    let questions = Metric::questions(kind);
    let mut others = report.table_metrics();
    others.retain(|metric| *metric != deciding);
    others.sort_by_key(|metric| {
        let place = questions.iter().position(|asked| asked == metric).unwrap_or(questions.len());
        let cost = [Metric::PeakMemory, Metric::Load].iter().position(|cost| cost == metric).unwrap_or(2);
        (metric.follows(kind).is_some(), place, cost)
    });
    others
}

/// By rank, then by figure; then those that take no part.
pub(crate) fn sorted<'a>(report: &'a Report, deciding: &Standing<'_>) -> Vec<&'a Row> {
    let order: Vec<&str> = deciding.labels().collect();
    let mut rows: Vec<&Row> = report.rows.iter().collect();
    let place = |row: &Row| order.iter().position(|label| *label == row.framework).unwrap_or(order.len());
    rows.sort_by_key(|row| (place(row), !row.state.has_figures()));
    rows
}

/// "1", or "2=" if it is shared.
fn rank(deciding: &Standing<'_>, row: &Row) -> String {
    if !row.state.takes_part() {
        return String::new();
    }
    let rank = deciding.rank(&row.framework);
    let is_shared = deciding.labels().filter(|label| deciding.rank(label) == rank).count() > 1;
    format!("{rank}{}", if is_shared { '=' } else { ' ' })
}

/// A figure with its mark.
fn cell(report: &Report, standing: &Standing<'_>, row: &Row) -> Cell {
    let figure = match row.typical(standing.metric) {
        None if row.rounds == 0 => words::DASH.into(),
        None => "n/a".into(),
        Some(value) => words::figure(value),
    };
    let mark = mark(report, standing, row);
    let tone = if mark == Mark::Best { Tone::Clear } else { Tone::Plain };
    toned(row, Cell::with_small(figure, mark.text()).toned(tone))
}

/// What is beside a figure.
pub(crate) fn mark(report: &Report, standing: &Standing<'_>, row: &Row) -> Mark {
    if is_marked(report, standing, row) { standing.mark(&row.framework) } else { Mark::None }
}

fn is_marked(report: &Report, standing: &Standing<'_>, row: &Row) -> bool {
    row.state.takes_part() && has_verdicts_on(report, standing.metric)
}

/// Whether there can be marks on a metric: noise spoils those of speed alone.
fn has_verdicts_on(report: &Report, metric: Metric) -> bool {
    super::rounds(report) >= statistics::MIN_ROUNDS
        && (report.noise().is_none() || !metric.depends_on_speed())
}

/// The name, with the sign of what the framework does not document.
fn title(row: &Row) -> String {
    let title = words::title(row);
    match is_semi_public(row) {
        true => title.replacen(&row.framework, &format!("{}°", row.framework), 1),
        false => title,
    }
}

fn is_semi_public(row: &Row) -> bool {
    row.state.has_figures() && row.in_effect.as_ref().is_some_and(|it| !it.semi_public.is_empty())
}

fn toned(row: &Row, cell: Cell) -> Cell {
    if row.state == State::Struck { cell.toned(Tone::Struck) } else { cell }
}

/// Parity in a word; the difference is in the report.
pub(super) fn parity(row: &Row) -> String {
    row.parity_words().split(',').next().unwrap_or_default().to_owned()
}

/// A name of at most so many characters; that it is struck stays.
fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let (name, end) =
        name.split_once(" ✗").map_or((name, String::new()), |(name, rule)| (name, format!(" ✗{rule}")));
    let kept: String = name.chars().take(most.saturating_sub(1 + end.chars().count())).collect();
    format!("{kept}…{end}")
}

// The lines below the table: what its signs mean, why a ratio has two ends, what was measured, and whose code that is.

/// Most pairs that a line names.
const BELOW_FEW: usize = 2;

/// The lines below the table of this width: what explains it, and what was computed.
pub(crate) fn notes(report: &Report, width: usize) -> [Vec<String>; 2] {
    let (are_rows, marked) = (are_rows(report, width), marked(report, width));
    let quality = report.rows.iter().filter_map(|row| Some((row, findings::other_file(row)?)));
    let quality: Vec<String> =
        quality.map(|(row, near)| format!("{} against the first file: {near}.", row.framework)).collect();
    let lines =
        [legend(report, &marked, are_rows), ends(report, &marked), hidden(report), uniform(report, are_rows)];
    let computed = [about(report)].into_iter().chain(provenance(report).into_iter().flatten());
    [lines.into_iter().flatten().chain(quality).collect(), computed.collect()]
}

fn marked(report: &Report, width: usize) -> Vec<Metric> {
    match (has_verdicts(report), are_rows(report, width)) {
        (false, _) => Vec::new(),
        (true, true) if width < usize::MAX => vec![Metric::deciding(report.plan.work.kind())],
        (true, _) => report.table_metrics(),
    }
}

fn legend(report: &Report, marked: &[Metric], are_rows: bool) -> Option<String> {
    let marks: Vec<Mark> = marked
        .iter()
        .map(|&metric| Standing::of_report(report, metric))
        .flat_map(|standing| standing.labels().map(|label| standing.mark(label)).collect::<Vec<_>>())
        .collect();
    let times =
        marks.iter().find_map(|mark| if let Mark::Times(_) = mark { Some(mark.text()) } else { None });
    let of = if are_rows { "column" } else { "row" };
    let rounds = rounds(report);
    let signs = [
        times.map(|text| {
            format!("{text}: {} times worse than the best of the {of}.", text.trim_end_matches('x'))
        }),
        marks.contains(&Mark::Open).then(|| format!("~: too close to call in {rounds} rounds.")),
        marks.contains(&Mark::Equal).then(|| format!("=: equal within {} %.", 100.0 * report.plan.margin)),
        report
            .rows
            .iter()
            .any(is_semi_public)
            .then(|| "°: by operations that its framework does not document.".to_owned()),
    ];
    let signs: Vec<String> = signs.into_iter().flatten().collect();
    (!signs.is_empty()).then(|| signs.join(" "))
}

/// Why cells have two ends: "tch in throughput: two speeds (7 and 3 of 10 rounds)".
fn ends(report: &Report, marked: &[Metric]) -> Option<String> {
    let kind = report.plan.work.kind();
    let mut told = Vec::new();
    for &metric in marked.iter().filter(|metric| metric.follows(kind).is_none()) {
        let standing = Standing::of_report(report, metric);
        let Some(best) = standing.best() else { continue };
        for label in standing.labels().filter(|label| *label != best) {
            let Some(split) = standing.pair(best, label).and_then(split) else { continue };
            let prompt = |case| report.plan.work.case_name(case).to_owned();
            told.push(format!("{label} in {}: {}", metric.words(), cause(split, prompt)));
        }
    }
    (!told.is_empty()).then(|| format!("Two ends: {}.", told.join("; ")))
}

/// Precision and parity where contenders are rows: "All: f32, parity ok."
fn uniform(report: &Report, are_rows: bool) -> Option<String> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.state.has_figures()).collect();
    let first = rows.first().filter(|_| are_rows)?;
    let told = |row: &Row| format!("{}, parity {}", row.precision_words(), parity(row));
    let usual = told(first);
    let others = rows.iter().filter(|row| told(row) != usual);
    let others: Vec<String> = others.map(|row| format!("{}: {}", row.framework, told(row))).collect();
    Some(match others.is_empty() {
        true => format!("All: {usual}."),
        false => format!("{usual}; {}.", others.join("; ")),
    })
}

/// What was measured, and whose code: "smollm2 (f32, made from the file's Q4_1), 2 threads of an AMD EPYC; prompts …".
pub(crate) fn about(report: &Report) -> String {
    let plan = &report.plan;
    let model = if report.model.name.is_empty() { &plan.model } else { &report.model.name };
    let processor = report.environment.processor(&plan.device);
    let article = if processor.starts_with(['A', 'E', 'I', 'O', 'N']) { "an" } else { "a" };
    let threads = words::count(plan.threads, "thread");
    let place = match (processor.is_empty(), plan.is_on_gpu()) {
        (true, _) => threads,
        (false, true) => format!("{article} {processor}"),
        (false, false) => format!("{threads} of {article} {processor}"),
    };
    let schedule = findings::schedule(plan).map_or_else(String::new, |schedule| format!("; {schedule}"));
    let rounds = words::count(report.rounds, "round");
    format!(
        "{model} ({}), {place}; {}{}, {rounds}{schedule}. {}",
        precision(report),
        plan.input_words(),
        unusual(report),
        whose(report)
    )
    .trim_end()
    .to_owned()
}

fn precision(report: &Report) -> String {
    let with_figures = || report.rows.iter().filter(|row| row.state.has_figures());
    let name =
        with_figures().next().map_or_else(|| report.plan.precision.name().to_owned(), Row::precision_name);
    if with_figures().any(|row| row.precision_name() != name) {
        return "in several precisions".to_owned();
    }
    match with_figures().find_map(|row| row.precision.stored.as_ref()) {
        Some(stored) if name == protocol::Precision::File.name() => format!("the file's own {stored}"),
        Some(stored) => format!("{name}, made from the file's {stored}"),
        None => name,
    }
}

/// Settings that differ from the usual ones.
fn unusual(report: &Report) -> String {
    let plan = &report.plan;
    let asked = plan.contenders.first().map(|contender| contender.cache.precision);
    let cache = asked.filter(|asked| !asked.is_auto()).map(|asked| format!(", KV cache in {}", asked.name()));
    let has_caches = plan.contenders.iter().any(|contender| !contender.engine.kernel_cache.is_empty());
    let is_fresh = has_caches && plan.kernel_cache == KernelCache::Fresh;
    cache.into_iter().chain(is_fresh.then(|| ", fresh kernel caches".to_owned())).collect()
}

/// What was computed, and by whose code: three lines.
fn provenance(report: &Report) -> [Option<String>; 3] {
    let each = |of: &dyn Fn(&Row) -> Option<String>| -> Vec<(String, String)> {
        let with_figures = report.rows.iter().filter(|row| row.state.has_figures());
        with_figures.filter_map(|row| Some((row.framework.clone(), of(row)?))).collect()
    };
    let (products, own) = (each(&|row| findings::products(row)), each(&|row| findings::own_code(row)));
    [
        together(&products).map(|told| format!("Multiplied in: {told}.")),
        together(&own).map(|told| {
            let phases = report.plan.work.phases().join(" and of ");
            format!("Not the framework's arithmetic, of the CPU time of {phases}: {told}.")
        }),
        together(&each(&|row| against_stock(report, row)))
            .map(|told| format!("Against its own column: {told}.")),
    ]
}

/// "f32" if that is so for all, or "candle bf16, tch f32".
fn together(told: &[(String, String)]) -> Option<String> {
    let (_, first) = told.first()?;
    if told.len() > 1 && told.iter().all(|(_, other)| other == first) {
        return Some(first.clone());
    }
    Some(told.iter().map(|(label, of)| format!("{label} {of}")).collect::<Vec<_>>().join("; "))
}

/// How many times as good it is as the framework's own implementation: "1.30x candle-transformers (1.27–1.33)".
fn against_stock(report: &Report, row: &Row) -> Option<String> {
    let stock = report.plan.contender(&row.framework)?.engine.stock.as_deref()?;
    let standing = Standing::of_report(report, Metric::deciding(report.plan.work.kind()));
    let found = standing.pair(&row.framework, stock)?;
    let turn = |ratio: f64| if found.a == row.framework { ratio } else { 1.0 / ratio };
    let ends = found.interval.map_or_else(String::new, |(low, high)| {
        let (low, high) = (turn(low), turn(high));
        format!(" ({})", words::between(low.min(high), low.max(high)))
    });
    Some(format!("{} {stock}{ends}", words::times(turn(found.advantage?))))
}

pub(super) fn whose(report: &Report) -> String {
    let of = |kind: Kind| -> Vec<&str> {
        report.rows.iter().filter(|row| row.kind == kind).map(|row| row.framework.as_str()).collect()
    };
    let yours = of(Kind::Yours);
    let parts = [(Kind::Tuned, "Photofinish's own model code"), (Kind::Stock, "the framework's own code")];
    if !yours.is_empty() {
        let others =
            parts.into_iter().map(|(kind, whose)| (of(kind), whose)).filter(|(of, _)| !of.is_empty());
        let told = others.chain([(yours, "yours")]).map(|(of, whose)| format!("{}: {whose}", listed(&of)));
        return told.collect::<Vec<_>>().join("; ") + ".";
    }
    match (of(Kind::Tuned).as_slice(), of(Kind::Stock).as_slice()) {
        ([], []) => String::new(),
        (_, []) => "Photofinish's own model code on each framework; the frameworks' own: --frameworks stock."
            .to_owned(),
        ([], _) => "The frameworks' own code.".to_owned(),
        (ours, theirs) if ours.len() <= theirs.len() => {
            format!("{}: Photofinish's own model code; the others: the frameworks' own.", listed(ours))
        }
        (_, theirs) => format!("{}: the framework's own code; the others: Photofinish's.", listed(theirs)),
    }
}

/// The open pairs that the table cannot show, in one line.
fn hidden(report: &Report) -> Option<String> {
    if !has_verdicts(report) {
        return None;
    }
    let kind = report.plan.work.kind();
    let tested = Metric::tested(kind).into_iter().filter(|metric| metric.follows(kind).is_none());
    let standings: Vec<Standing<'_>> = tested.map(|metric| Standing::of_report(report, metric)).collect();
    let pairs: Vec<String> = standings
        .iter()
        .flat_map(|standing| standing.hidden())
        .map(|found| format!("{}, {} in {}", found.a, found.b, found.metric.words()))
        .collect();
    let told = if pairs.len() <= BELOW_FEW { pairs.join("; ") } else { format!("{} pairs", pairs.len()) };
    (!pairs.is_empty()).then(|| format!("Too close to call, and not in the table: {told}."))
}
