use super::*;
use crate::plan::{StudyKind, StudyRequest};

fn engine(name: &str) -> Engine {
    Engine { name: name.into(), framework: name.into(), ..Engine::default() }
}

/// An engine of every kind.
struct Known;

impl Engines for Known {
    fn engine(&self, name: &str) -> Result<Engine> {
        let plain = engine(name);
        Ok(match name {
            "plain" | "plain-base" | "static-nocache" | "kernels-base" => plain,
            "compiler" => Engine { compiles: Some("a compiler".into()), ..plain },
            "static" => Engine {
                compiles: Some("a compiler".into()),
                without_cache: Some("static-nocache".into()),
                ..plain
            },
            "recomputes" => Engine { without_cache: Some("recomputes".into()), ..plain },
            "kernels" => Engine {
                compiles: Some("a compiler".into()),
                reduced_precision: Some(Precision::Bf16),
                without_fused: Some("kernels-base".into()),
                ..plain
            },
            "torn" => Engine {
                without_cache: Some("static-nocache".into()),
                without_fused: Some("kernels-base".into()),
                ..plain
            },
            _ => return Err(Failure::usage(format!("there is no framework {name:?}"))),
        })
    }

    fn selected(&self, names: &[String]) -> Result<Vec<Engine>> {
        names.iter().map(|name| self.engine(name)).collect()
    }

    fn encodes(&self, model: &str) -> Result<bool> {
        Ok(model == "encoder")
    }
}

fn request(frameworks: &[&str], switches: &[Switch]) -> Request {
    let mut request = Request {
        frameworks: frameworks.iter().map(|name| (*name).to_owned()).collect(),
        ..Request::default()
    };
    request.study.switches = switches.to_vec();
    request
}

fn planned(request: Request) -> Result<StudyPlan> {
    StudyRequest { kind: StudyKind::Ab(vec!["optimised".into()]), request }.plan(&Known)
}

/// The cells of a request that is accepted.
fn cells(request: Request) -> Vec<CellPlan> {
    planned(request).unwrap().cells
}

/// The error of a rejected request; its exit code is 2.
fn refused(request: Request) -> String {
    let failure = planned(request).unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    failure.to_string()
}

/// The arms of a cell: label, engine, cache, JIT and precision of each.
fn arms(cell: &CellPlan) -> Vec<String> {
    let words = |arm: &Arm| {
        let Arm { label, engine, precision, jit, kv_cache, .. } = arm;
        let cache = if *kv_cache == Some(KvCache::On) { "cache" } else { "no cache" };
        let jit = if *jit == Some(true) { "JIT" } else { "no JIT" };
        format!("{label}: {engine}, {cache}, {jit}, {}", precision.unwrap().name())
    };
    cell.request.study.arms.iter().map(words).collect()
}

/// The place of each cell on the axis of switches.
fn places(cells: &[CellPlan]) -> Vec<String> {
    cells.iter().map(|cell| cell.settings[&Axis::Switch].to_string()).collect()
}

#[test]
fn all_on_and_each_switch_alone_are_compared_with_all_off() {
    let plan = planned(request(&["compiler"], &[])).unwrap();
    assert_eq!(plan.name, "ab optimised");
    assert_eq!(plan.view, StudyView::Ab(["switched on".to_owned(), "all off".to_owned()]));
    assert_eq!(places(&plan.cells), ["all on", "cache", "JIT"]);
    let off = "compiler (all off): compiler, no cache, no JIT, f32";
    assert_eq!(arms(&plan.cells[0]), ["compiler (all on): compiler, cache, JIT, f32", off]);
    assert_eq!(arms(&plan.cells[1]), ["compiler (cache): compiler, cache, no JIT, f32", off]);
    assert_eq!(arms(&plan.cells[2]), ["compiler (JIT): compiler, no cache, JIT, f32", off]);
    let varied: Vec<_> = plan.cells.iter().map(|cell| cell.request.study.varied.join(" ")).collect();
    assert_eq!(varied, ["R13 R14", "R13", "R14"]);
    let request = &plan.cells[0].request;
    assert_eq!((&request.new_tokens[..], request.iterations), (&[32][..], Some(1)));
}

#[test]
fn a_framework_may_be_without_its_cache_in_a_way_of_its_own() {
    assert_eq!(
        arms(&cells(request(&["static"], &[]))[0]),
        ["static (all on): static, cache, JIT, f32", "static (all off): static-nocache, cache, no JIT, f32"]
    );
}

#[test]
fn four_switches_are_compared_one_by_one() {
    let cells = cells(request(&["kernels"], &[]));
    assert_eq!(places(&cells), ["all on", "cache", "JIT", "bf16", "fused"]);
    assert_eq!(cells[0].request.study.varied, ["R13", "R14", "R2"]);
    let off = "kernels (all off): kernels-base, no cache, no JIT, f32";
    assert_eq!(arms(&cells[3]), ["kernels (bf16): kernels-base, no cache, no JIT, bf16", off]);
    assert_eq!(arms(&cells[4]), ["kernels (fused): kernels, no cache, no JIT, f32", off]);
}

#[test]
fn only_the_switches_that_were_named_are_compared_and_others_are_equal_in_both_arms() {
    let named = cells(request(&["kernels"], &[Switch::Fused, Switch::Cache]));
    assert_eq!(places(&named), ["all on", "cache", "fused"]);
    assert_eq!(
        arms(&named[0]),
        ["kernels (all on): kernels, cache, JIT, f32", "kernels (all off): kernels-base, no cache, JIT, f32"]
    );
    let mut reduced = request(&["kernels"], &[Switch::Cache, Switch::Jit]);
    reduced.precisions = vec![Precision::Bf16];
    assert!(cells(reduced).iter().flat_map(arms).all(|arm| arm.ends_with("bf16")));
    let without = cells(Request { jit: false, ..request(&["kernels"], &[]) });
    assert_eq!(places(&without), ["all on", "cache", "bf16", "fused"], "--no-jit is for all");
    assert!(without.iter().flat_map(arms).all(|arm| arm.contains("no JIT")));
}

#[test]
fn a_reduced_precision_is_a_switch_where_it_is_asked_for() {
    let mut asked = request(&["plain"], &[]);
    asked.precisions = vec![Precision::F16];
    let found = cells(asked);
    assert_eq!(places(&found), ["all on", "cache", "f16"]);
    assert!(found.iter().all(|cell| cell.request.precisions.is_empty()));
    let named = cells(request(&["plain"], &[Switch::Cache, Switch::Precision]));
    assert_eq!(arms(&named[2])[0], "plain (bf16): plain, no cache, JIT, bf16");
    let fused = cells(request(&["plain"], &[Switch::Cache, Switch::Fused]));
    assert!(arms(&fused[1])[0].starts_with("plain (cache): plain-base, cache"));
}

#[test]
fn what_a_framework_lacks_is_refused_in_one_sentence() {
    assert_eq!(
        refused(request(&["plain"], &[Switch::Cache, Switch::Jit])),
        "plain has no switch jit: there is neither a JIT nor graph optimisation to switch off; it has cache"
    );
    assert_eq!(
        refused(request(&["plain"], &[])),
        "plain has too few switches: it has cache; --switches and --precision name more"
    );
    let nothing = refused(request(&["recomputes"], &[Switch::Cache, Switch::Precision]));
    assert!(
        nothing.starts_with("recomputes has no switch cache: it has no KV cache; it has precision"),
        "{nothing}"
    );
    let both = refused(request(&["plain", "recomputes"], &[]));
    assert!(both.contains("plain has too few") && both.contains("; recomputes has too few"), "{both}");
    let torn = refused(request(&["torn"], &[]));
    assert!(
        torn.starts_with("torn has no variant static-nocache-base, which it needs without its switches"),
        "{torn}"
    );
}

#[test]
fn a_framework_that_lacks_a_switch_is_a_row_with_its_reason_beside_others() {
    let cells = cells(request(&["plain", "compiler"], &[]));
    assert_eq!(places(&cells), ["all on", "all on", "cache", "JIT"]);
    assert!(cells[0].request.study.refused.as_deref().unwrap().starts_with("plain has too few switches"));
    assert_eq!((&cells[1].request.study.refused, cells[1].request.study.arms.len()), (&None, 2));
}

#[test]
fn contradictions_are_refused() {
    let jit = Request { jit: false, ..request(&["compiler"], &[Switch::Cache, Switch::Jit]) };
    assert_eq!(refused(jit), "--switches jit and --no-jit contradict each other: leave one out");
    let cache = Request { kv_cache: KvCache::Off, ..request(&["compiler"], &[Switch::Cache, Switch::Jit]) };
    assert!(refused(cache).contains("--kv-cache off contradict"));
    let f32 = Request {
        precisions: vec![Precision::F32],
        ..request(&["kernels"], &[Switch::Cache, Switch::Precision])
    };
    assert!(refused(f32).contains("name it with --precision"));
    let two = Request { precisions: vec![Precision::F16, Precision::Bf16], ..request(&["kernels"], &[]) };
    assert!(refused(two).contains("takes one --precision"));
    assert_eq!(
        refused(request(&["compiler"], &[Switch::Cache])),
        "`sweep optimised` needs at least two switches; for a single one use `photofinish sweep kv-cache`"
    );
    let elsewhere = request(&["compiler"], &[Switch::Jit]);
    let jit = StudyRequest { kind: StudyKind::Ab(vec!["jit".into()]), request: elsewhere }.plan(&Known);
    assert_eq!(jit.unwrap_err().to_string(), "--switches is for `sweep optimised`: leave it out");
}
