//! `photofinish profile` of an ONNX file: which operators take how long, for each framework whose profiler tells it.

use std::collections::BTreeMap;
use std::path::Path;

use comparison::plan::work::Describe;
use comparison::plan::{Failure, Result};
use protocol::{ProfileEvent, Task, Trace};
use render::table::{Cell, Column, Table};

use super::single;
use super::trace::Told;
use crate::cli::work::{OnArgs, ProfileArgs};
use crate::output::{print, screen};

/// Kinds of operators, with parts of the names that frameworks have for them, in small letters. The first that fits
/// counts.
const KINDS: [(&str, &[&str]); 9] = [
    ("convolution", &["conv", "im2col", "depthwise"]),
    ("recurrence", &["lstm", "gru", "rnn"]),
    ("softmax", &["softmax"]),
    ("norm", &["norm", "mvn"]),
    ("pooling, reduction", &["pool", "reduce", "mean", "argmax", "topk", "cumsum", "sum"]),
    (
        "matrix product",
        &["matmul", "gemm", "fullyconnected", "addmm", "bmm", "linear", "einsum", "innerproduct", "aten::mm"],
    ),
    ("resizing", &["resize", "interpolate", "upsample"]),
    (
        "moving data",
        &[
            "reshape",
            "transpose",
            "permute",
            "concat",
            "cat",
            "slice",
            "gather",
            "scatter",
            "split",
            "pad",
            "squeeze",
            "expand",
            "tile",
            "reorder",
            "copy",
            "cast",
            "convert",
            "to_",
            "flatten",
            "shape",
            "range",
            "index",
            "stack",
            "contiguous",
            "clone",
            "empty",
            "view",
            "select",
            "identity",
            "rmaxis",
            "addaxis",
            "intoshape",
            "moveaxis",
        ],
    ),
    (
        "elementwise",
        &[
            "add",
            "mul",
            "sub",
            "div",
            "pow",
            "sqrt",
            "relu",
            "sigmoid",
            "tanh",
            "erf",
            "gelu",
            "clip",
            "clamp",
            "swish",
            "eltwise",
            "exp",
            "neg",
            "max",
            "min",
            "abs",
            "floor",
            "ceil",
            "log",
            "where",
            "equal",
            "less",
            "greater",
            "and",
            "or",
            "not",
            "subgraph",
            "softplus",
            "reciprocal",
            "element",
            "opt",
            "math",
            "scale",
        ],
    ),
];

const OTHER: &str = "other";

/// Operators of a framework that are listed by its own names.
const LISTED: usize = 8;

/// Time in an operator of one framework.
#[derive(Clone, Copy, Default)]
struct Spent {
    ns: u64,
    count: usize,
}

/// What one framework's profiler told of a request.
struct Profiled {
    framework: String,
    /// How long the request took, with the profiler.
    wall_ns: u64,
    /// By the framework's own name.
    operators: Vec<(String, Spent)>,
    profiler: String,
}

/// Whether a model is for this kind of profile.
pub(super) fn fits(args: &ProfileArgs) -> Result<bool> {
    let places = args.on.here.places.find()?;
    Ok(args.on.model.request().models.first().is_some_and(|model| configs::runs_onnx(&places.configs, model)))
}

pub(super) fn profile(args: &ProfileArgs) -> Result<u8> {
    let mut profiled = Vec::new();
    let mut without = Vec::new();
    for framework in args.on.framework.split(',').map(str::trim) {
        let on = OnArgs { framework: framework.to_owned(), ..args.on.clone() };
        match of_framework(&on, args) {
            Ok(found) => profiled.push(found),
            // One that cannot run stops no other, unless it is the only one.
            Err(failure @ Failure::Interrupted) => return Err(failure),
            Err(failure) => without.push(format!("{framework}: {failure}")),
        }
    }
    if profiled.is_empty() {
        return Err(Failure::failed(without.join("; ")));
    }
    let mut text = by_kind(&profiled).terminal(&screen()) + "\n\n";
    for one in &profiled {
        let shown: Vec<String> = one
            .operators
            .iter()
            .take(LISTED)
            .map(|(name, spent)| format!("{name} {} ms ({})", milliseconds(spent.ns), spent.count))
            .collect();
        text += &format!("{}, by {}: {}\n", one.framework, one.profiler, shown.join(", "));
    }
    text += "One request after two others, slowed by the profiler: shares, and no measurement; `photofinish compare` measures.\n";
    print(&text)?;
    for reason in without {
        protocol::say!("{reason}");
    }
    Ok(0)
}

fn of_framework(on: &OnArgs, args: &ProfileArgs) -> Result<Profiled> {
    let (single, work) = single::of_graph(on, &args.graph, 0)?;
    let scratch =
        tempfile::tempdir().map_err(|error| Failure::failed(format!("no temporary directory: {error}")))?;
    let file = scratch.path().join("profile.json").display().to_string();
    let outcome = single.run(false, Task::Trace(Trace { work: work.of_reference(), file: file.clone() }))?;
    let told = Told::read(&on.framework, &outcome)?;
    let Some(profiler) = told.profiler() else {
        return Err(Failure::failed(told.notes()));
    };
    let (start, end) = told
        .last_request()
        .ok_or_else(|| Failure::failed(format!("{} did not report its request", on.framework)))?;
    let events = told.profile(Path::new(&file))?;
    let within: Vec<&ProfileEvent> = events
        .iter()
        .filter(|event| event.start_ns + event.duration_ns / 2 >= start && event.start_ns < end)
        .collect();
    Ok(Profiled {
        framework: on.framework.clone(),
        wall_ns: end - start,
        operators: operators(&within),
        profiler,
    })
}

/// Time by operator, the most first. Of an event that contains others on its thread, only the rest is its own.
fn operators(events: &[&ProfileEvent]) -> Vec<(String, Spent)> {
    let mut threads: BTreeMap<&str, Vec<&ProfileEvent>> = BTreeMap::new();
    for event in events {
        threads.entry(event.thread.as_str()).or_default().push(event);
    }
    let mut spent: BTreeMap<String, Spent> = BTreeMap::new();
    for events in threads.values_mut() {
        events.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.duration_ns)));
        let mut own: Vec<i128> = events.iter().map(|event| i128::from(event.duration_ns)).collect();
        let mut open: Vec<usize> = Vec::new();
        for place in 0..events.len() {
            let start = events[place].start_ns;
            while open
                .last()
                .is_some_and(|&outer| events[outer].start_ns + events[outer].duration_ns <= start)
            {
                open.pop();
            }
            if let Some(&outer) = open.last() {
                own[outer] -= i128::from(events[place].duration_ns);
            }
            open.push(place);
        }
        for (event, own) in events.iter().zip(own) {
            let entry = spent.entry(event.name.as_str().to_owned()).or_default();
            entry.ns += u64::try_from(own).unwrap_or(0);
            entry.count += 1;
        }
    }
    let mut spent: Vec<(String, Spent)> = spent.into_iter().filter(|(_, spent)| spent.ns > 0).collect();
    spent.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.ns));
    spent
}

fn kind(operator: &str) -> &'static str {
    let name = operator.to_lowercase();
    KINDS
        .iter()
        .find(|(_, parts)| parts.iter().any(|part| name.contains(part)))
        .map_or(OTHER, |(kind, _)| kind)
}

/// A row for each kind of operators, a column for each framework.
fn by_kind(profiled: &[Profiled]) -> Table {
    let mut kinds: BTreeMap<&str, Vec<Spent>> = BTreeMap::new();
    for (column, one) in profiled.iter().enumerate() {
        for (name, spent) in &one.operators {
            let row = kinds.entry(kind(name)).or_insert_with(|| vec![Spent::default(); profiled.len()]);
            row[column].ns += spent.ns;
            row[column].count += spent.count;
        }
    }
    let mut kinds: Vec<(&str, Vec<Spent>)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, row)| std::cmp::Reverse(row.iter().map(|spent| spent.ns).max()));
    let titles = profiled.iter().map(|one| Column::right(format!("{} (ms)", one.framework)));
    let mut table = Table::new([Column::left("operators")].into_iter().chain(titles));
    let mut add = |name: &str, cells: Vec<String>| {
        table.add([Cell::from(name.to_owned())].into_iter().chain(cells.into_iter().map(Cell::from)));
    };
    for (name, row) in kinds {
        let cell = |spent: &Spent| if spent.count == 0 { "–".to_owned() } else { milliseconds(spent.ns) };
        add(name, row.iter().map(cell).collect());
    }
    let sums: Vec<u64> =
        profiled.iter().map(|one| one.operators.iter().map(|(_, spent)| spent.ns).sum()).collect();
    add("all operators", sums.iter().map(|&sum| milliseconds(sum)).collect());
    add("the request", profiled.iter().map(|one| milliseconds(one.wall_ns)).collect());
    let share =
        |(sum, one): (&u64, &Profiled)| format!("{:.0} %", 100.0 * *sum as f64 / one.wall_ns.max(1) as f64);
    add("operators ÷ request", sums.iter().zip(profiled).map(share).collect());
    table
}

/// Three digits of a number of milliseconds.
fn milliseconds(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    let decimals = (2 - ms.max(1e-3).log10().floor() as i32).clamp(0, 4) as usize;
    format!("{ms:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, start_ns: u64, duration_ns: u64) -> ProfileEvent {
        ProfileEvent {
            name: name.into(),
            part: None,
            thread: "1".into(),
            start_ns,
            duration_ns,
            details: BTreeMap::new(),
        }
    }

    #[test]
    fn an_operator_s_time_is_its_own() {
        let events = [
            event("aten::conv2d", 0, 100),
            event("aten::mkldnn_convolution", 10, 80),
            event("aten::relu", 120, 30),
            event("aten::mkldnn_convolution", 160, 40),
        ];
        let found = operators(&events.iter().collect::<Vec<_>>());
        let found: Vec<(&str, u64, usize)> =
            found.iter().map(|(name, spent)| (name.as_str(), spent.ns, spent.count)).collect();
        assert_eq!(
            found,
            [("aten::mkldnn_convolution", 120, 2), ("aten::relu", 30, 1), ("aten::conv2d", 20, 1)]
        );
    }

    #[test]
    fn names_of_all_frameworks_are_of_a_kind() {
        for (name, expected) in [
            ("FusedConv", "convolution"),
            ("aten::mkldnn_convolution", "convolution"),
            ("MatMul", "matrix product"),
            ("FullyConnected", "matrix product"),
            ("aten::addmm", "matrix product"),
            ("LayerNormalization", "norm"),
            ("ReduceMean", "pooling, reduction"),
            ("Reorder", "moving data"),
            ("aten::_softmax", "softmax"),
            ("Eltwise", "elementwise"),
            ("Sigmoid", "elementwise"),
            ("Something", "other"),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
        assert_eq!([12_345_678, 1_234_567, 12_345].map(milliseconds), ["12.3", "1.23", "0.0123"]);
    }
}
