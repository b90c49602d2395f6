//! A claim with its figures and verdicts, as read from the runs that are kept.

use std::path::Path;

use anyhow::Result;
use judge::Environment;

use crate::claim::{Claim, Figure, Run};
use crate::found::Found;
use crate::kept::{self, Kept};
use crate::published::{Verdict, of_all};

/// A claim, judged.
#[derive(Debug)]
pub struct Judged<'a> {
    pub claim: &'a Claim,
    /// Every run of the claim; none where it was not run.
    pub runs: Vec<(&'a Run, Option<Kept>)>,
    pub figures: Vec<JudgedFigure<'a>>,
    pub verdict: Verdict,
}

#[derive(Debug)]
pub struct JudgedFigure<'a> {
    pub figure: &'a Figure,
    /// The figure, or the reason why there is none.
    pub found: Result<Found, String>,
    /// None where it is held against nothing.
    pub verdict: Option<Verdict>,
}

/// Judges a claim by the runs below `root`.
pub fn judge<'a>(root: &Path, claim: &'a Claim) -> Result<Judged<'a>> {
    let runs: Result<Vec<_>> =
        claim.runs.iter().map(|run| Ok((run, kept::read(root, claim, run)?))).collect();
    Ok(of_runs(claim, runs?))
}

fn of_runs<'a>(claim: &'a Claim, runs: Vec<(&'a Run, Option<Kept>)>) -> Judged<'a> {
    let figures: Vec<_> = claim.figures.iter().map(|figure| judged(claim, figure, &runs)).collect();
    let verdicts: Vec<Verdict> = figures.iter().filter_map(|figure| figure.verdict.clone()).collect();
    Judged { claim, runs, figures, verdict: of_all(&verdicts) }
}

fn judged<'a>(claim: &Claim, figure: &'a Figure, runs: &[(&Run, Option<Kept>)]) -> JudgedFigure<'a> {
    let found = match &figure.run {
        None => figure.read.read(None),
        Some(name) => of_run(claim, name, runs).and_then(|kept| figure.read.read(kept.report.as_ref())),
    };
    let verdict = figure.published.as_ref().map(|published| match &found {
        Ok(found) => published.verdict(found, figure.unit),
        Err(reason) => Verdict::NotMeasurable(reason.clone()),
    });
    JudgedFigure { figure, found, verdict }
}

/// The run of this name, if it says anything about the claim as it stands.
fn of_run<'a>(claim: &Claim, name: &str, runs: &'a [(&Run, Option<Kept>)]) -> Result<&'a Kept, String> {
    let found = runs.iter().find(|(run, _)| run.name == name);
    let (run, kept) = found.ok_or_else(|| format!("there is no run {name}"))?;
    let again = format!("`cargo xtask claims --only {}`", claim.number);
    let kept = kept.as_ref().ok_or_else(|| format!("it was not run yet: {again}"))?;
    if kept.record.command != run.command {
        return Err(format!("it was run with another command, `{}`: {again}", kept.record.command));
    }
    match &kept.record.refused {
        Some(reason) => Err(reason.clone()),
        None => Ok(kept),
    }
}

impl Judged<'_> {
    /// The machine of the first run that has one.
    pub(crate) fn machine(&self) -> Option<&Environment> {
        self.runs.iter().find_map(|(_, kept)| kept.as_ref()?.environment.as_ref())
    }

    /// Libraries with their versions, each once.
    pub(crate) fn libraries(&self) -> Vec<&str> {
        let reports = self.runs.iter().filter_map(|(_, kept)| kept.as_ref()?.report.as_ref());
        let all = reports.flat_map(|report| &report.cells).flat_map(|cell| &cell.origin.libraries);
        let mut libraries: Vec<&str> = Vec::new();
        for library in all {
            if !libraries.contains(&library.as_str()) {
                libraries.push(library);
            }
        }
        libraries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::RunRecord;

    fn claim() -> Claim {
        toml::from_str(
            r#"
            title = "t"
            source = "s"
            says = "x"
            conditions = "c"
            here = "h"
            explains = "e"
            [[run]]
            name = "both"
            command = "photofinish ab a b"
            [[figure]]
            what = "from the run"
            run = "both"
            unit = "times"
            read = { kind = "advantage", a = "a", b = "b", metric = "throughput" }
            published = { text = "2x", low = 2.0, reading = "at_least" }
            [[figure]]
            what = "the arithmetic"
            unit = "megabytes"
            read = { kind = "product", factors = [12, 12, 64, 1024, 4] }
            published = { text = "38 MB", low = 38e6, reading = "about" }
            "#,
        )
        .unwrap()
    }

    fn kept(command: &str, refused: Option<&str>) -> Kept {
        let record = RunRecord {
            command: command.into(),
            exit_code: Some(2),
            seconds: 1.0,
            refused: refused.map(str::to_owned),
            left_out: Vec::new(),
        };
        Kept { record, report: None, environment: None, has_page: false }
    }

    fn reason(kept: Option<Kept>) -> String {
        let claim = claim();
        match of_runs(&claim, vec![(&claim.runs[0], kept)]).verdict {
            Verdict::NotMeasurable(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arithmetic_needs_no_run() {
        let claim = claim();
        let judged = of_runs(&claim, vec![(&claim.runs[0], None)]);
        assert_eq!(judged.figures[1].found, Ok(Found { value: 37_748_736.0, interval: None }));
        assert_eq!(judged.figures[1].verdict, Some(Verdict::Holds));
    }

    #[test]
    fn a_run_that_says_nothing_makes_a_claim_not_measurable_with_the_reason() {
        assert!(reason(None).starts_with("it was not run yet: `cargo xtask claims --only"));
        assert_eq!(reason(Some(kept("photofinish ab a b", Some("no such model")))), "no such model");
        let other = reason(Some(kept("photofinish ab a b --rounds 2", None)));
        assert!(
            other.starts_with("it was run with another command, `photofinish ab a b --rounds 2`"),
            "{other}"
        );
    }
}
