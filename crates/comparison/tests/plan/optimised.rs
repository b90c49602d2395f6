//! `ab optimised`: its arms, and its errors before anything is measured.

use bundle::Precision;
use comparison::plan;
use comparison::plan::{
    Arm, CellPlan, Engines, Failure, Request, StudyKind, StudyPlan, StudyRequest, StudyView, Switch,
};
use configs::Engine;
use protocol::KvCache;

fn engine(name: &str) -> Engine {
    Engine { name: name.into(), framework: name.into(), ..Engine::default() }
}

/// An engine of every kind.
struct Known;

impl Engines for Known {
    fn engine(&self, name: &str) -> plan::Result<Engine> {
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

    fn selected(&self, names: &[String]) -> plan::Result<Vec<Engine>> {
        names.iter().map(|name| self.engine(name)).collect()
    }

    fn encodes(&self, model: &str) -> plan::Result<bool> {
        Ok(model == "encoder")
    }
}

fn request(frameworks: &[&str], switches: &[Switch]) -> Request {
    let mut request = Request {
        frameworks: frameworks.iter().map(|name| (*name).to_owned()).collect(),
        ..Request::default()
    };
    request.study.crossed = switches.to_vec();
    request
}

fn planned(request: Request) -> plan::Result<StudyPlan> {
    StudyRequest { kind: StudyKind::Ab(vec!["optimised".into()]), request }.plan(&Known)
}

/// The only cell.
fn cell(frameworks: &[&str], switches: &[Switch]) -> CellPlan {
    let mut plan = planned(request(frameworks, switches)).unwrap();
    assert_eq!(plan.cells.len(), 1);
    plan.cells.remove(0)
}

/// The error of a rejected request; its exit code is 2.
fn refused(request: Request) -> String {
    let failure = planned(request).unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    failure.to_string()
}

fn labels(cell: &CellPlan) -> Vec<&str> {
    cell.request.study.arms.iter().map(|arm| arm.label.as_str()).collect()
}

fn arm<'a>(cell: &'a CellPlan, what: &str) -> &'a Arm {
    let ends = |arm: &&Arm| arm.label.ends_with(&format!("({what})"));
    cell.request.study.arms.iter().find(ends).unwrap_or_else(|| panic!("{what} in {:?}", labels(cell)))
}

#[test]
fn every_combination_is_an_arm_from_all_on_to_all_off() {
    let plan = planned(request(&["compiler"], &[])).unwrap();
    assert_eq!((plan.name.as_str(), &plan.view), ("ab optimised", &StudyView::Crossed));
    let cell = &plan.cells[0];
    assert_eq!(
        labels(cell),
        ["compiler (all on)", "compiler (JIT)", "compiler (cache)", "compiler (all off)"]
    );
    let study = &cell.request.study;
    assert_eq!(
        (&study.crossed[..], &study.varied[..]),
        (&[Switch::Cache, Switch::Jit][..], &["R13".to_owned(), "R14".to_owned()][..])
    );
    let set: Vec<_> = study.arms.iter().map(|arm| (arm.kv_cache, arm.jit)).collect();
    let (on, off) = (Some(KvCache::On), Some(KvCache::Off));
    assert_eq!(set, [(on, Some(true)), (off, Some(true)), (on, Some(false)), (off, Some(false))]);
    assert_eq!((cell.request.new_tokens.clone(), cell.request.iterations), (vec![32], Some(1)));
}

#[test]
fn a_framework_may_be_without_its_cache_in_a_way_of_its_own() {
    let cell = cell(&["static"], &[]);
    let set: Vec<_> =
        cell.request.study.arms.iter().map(|arm| (arm.engine.as_str(), arm.jit, arm.kv_cache)).collect();
    let cached = Some(KvCache::On);
    assert_eq!(set[0], ("static", Some(true), cached));
    assert_eq!(set[3], ("static-nocache", Some(false), cached));
}

#[test]
fn four_switches_are_crossed_in_full() {
    let cell = cell(&["kernels"], &[]);
    let study = &cell.request.study;
    assert_eq!((study.crossed.len(), study.arms.len()), (4, 16));
    assert_eq!(study.varied, ["R13", "R14", "R2"]);
    assert_eq!(study.title(Switch::Precision), "bf16");
    let off = arm(&cell, "all off");
    assert_eq!(
        (off.engine.as_str(), off.precision, off.jit),
        ("kernels-base", Some(Precision::F32), Some(false))
    );
    let some = arm(&cell, "cache + bf16");
    assert_eq!(
        (some.engine.as_str(), some.precision, some.jit),
        ("kernels-base", Some(Precision::Bf16), Some(false))
    );
    let distinct: std::collections::BTreeSet<&str> = labels(&cell).into_iter().collect();
    assert_eq!(distinct.len(), 16, "every arm has a label of its own");
}

#[test]
fn only_the_switches_that_were_named_are_crossed() {
    let cell = cell(&["kernels"], &[Switch::Fused, Switch::Cache]);
    assert_eq!(cell.request.study.crossed, [Switch::Cache, Switch::Fused]);
    // Settings that are not crossed are equal in all arms, even if a variant would fix them.
    assert!(
        cell.request
            .study
            .arms
            .iter()
            .all(|arm| (arm.jit, arm.precision) == (Some(true), Some(Precision::F32)))
    );
    let mut reduced = request(&["kernels"], &[Switch::Cache, Switch::Jit]);
    reduced.precisions = vec![Precision::Bf16];
    let arms = planned(reduced).unwrap().cells.remove(0).request.study.arms;
    assert!(arms.iter().all(|arm| arm.precision == Some(Precision::Bf16)));
}

#[test]
fn a_reduced_precision_is_a_switch_where_it_is_asked_for() {
    let mut asked = request(&["plain"], &[]);
    asked.precisions = vec![Precision::F16];
    let cell = planned(asked).unwrap().cells.remove(0);
    assert_eq!(cell.request.study.crossed, [Switch::Cache, Switch::Precision]);
    assert_eq!((labels(&cell)[1], cell.request.precisions.len()), ("plain (f16)", 0));
    let named = self::cell(&["plain"], &[Switch::Cache, Switch::Precision]);
    assert_eq!(arm(&named, "bf16").precision, Some(Precision::Bf16));
    let fused = self::cell(&["plain"], &[Switch::Cache, Switch::Fused]);
    assert_eq!(arm(&fused, "cache").engine, "plain-base");
}

#[test]
fn what_a_framework_lacks_is_refused_in_one_sentence() {
    assert_eq!(
        refused(request(&["plain"], &[Switch::Cache, Switch::Jit])),
        "plain has no switch jit: there is neither a JIT nor graph optimisation to switch off; it has cache"
    );
    assert_eq!(
        refused(request(&["plain"], &[])),
        "plain has too few switches to cross: it has cache; --switches and --precision name more"
    );
    let nothing = refused(request(&["recomputes"], &[Switch::Cache, Switch::Precision]));
    assert!(
        nothing.starts_with("recomputes has no switch cache: it has no KV cache; it has precision"),
        "{nothing}"
    );
    let both = refused(request(&["plain", "recomputes"], &[]));
    assert!(both.contains("plain has too few") && both.contains("; recomputes has too few"), "{both}");
}

#[test]
fn a_framework_that_lacks_a_switch_is_a_row_with_its_reason_beside_others() {
    let cells = planned(request(&["plain", "compiler"], &[])).unwrap().cells;
    assert!(cells[0].request.study.refused.as_deref().unwrap().starts_with("plain has too few switches"));
    assert_eq!((&cells[1].request.study.refused, cells[1].request.study.arms.len()), (&None, 4));
}

#[test]
fn a_combination_that_no_variant_has_is_refused() {
    let torn = refused(request(&["torn"], &[]));
    assert!(
        torn.starts_with(
            "torn has no variant static-nocache-base, which a combination of its switches needs"
        ),
        "{torn}"
    );
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
        "crossing needs at least two switches; for a single one use `photofinish ab kv-cache`"
    );
    let elsewhere = request(&["compiler"], &[Switch::Jit]);
    let jit = StudyRequest { kind: StudyKind::Ab(vec!["jit".into()]), request: elsewhere }.plan(&Known);
    assert_eq!(jit.unwrap_err().to_string(), "--switches is for `ab optimised`: leave it out");
}

#[test]
fn a_switch_that_is_off_for_all_is_not_crossed() {
    let without = Request { jit: false, ..request(&["kernels"], &[]) };
    let cell = planned(without).unwrap().cells.remove(0);
    assert_eq!(cell.request.study.crossed, [Switch::Cache, Switch::Precision, Switch::Fused]);
    assert!(cell.request.study.arms.iter().all(|arm| arm.jit == Some(false)));
}
