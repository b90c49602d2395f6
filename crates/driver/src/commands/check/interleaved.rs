//! Compares two builds, or two versions of each framework: each runs as it is here and as it is in another build or version,
//! interleaved round by round. A disturbance of the machine then affects both alike.

use std::path::{Path, PathBuf};

use comparison::history::Record;
use comparison::judge::Report;
use comparison::judge::records;
use comparison::judge::regression::{self, Document, Kind, Side, pairing};
use comparison::plan::ab::engines_of;
use comparison::plan::{Arm, Contender, Engines, Failure, Request, Result};
use configs::{Engine, EngineSettings};
use protocol::untrusted;

use crate::cli::CheckArgs;
use crate::commands::compare::{self, Destination, results_dir};
use crate::measure::resolve::available_threads;
use crate::measure::{Places, places, provision, worker};

/// The suffix of a framework's name for its other build.
pub(super) const BASE: &str = "@base";

/// Rules that may differ: the builds are the subject of the comparison.
const VARIED: &str = "R10";

pub(in crate::commands) enum Base {
    /// The workers of another build.
    Workers(PathBuf),
    /// Another version of each; of a checkout the framework with the version to judge, too.
    Version { version: String, head: Option<String> },
}

impl Base {
    pub(super) fn asked(args: &CheckArgs) -> Result<Option<Base>> {
        if args.base.is_some() {
            return Ok(Some(super::commits(args)?.0));
        }
        let workers = args.base_workers.clone().map(Base::Workers);
        let version = |version| Base::Version { version, head: None };
        Ok(workers.or_else(|| args.base_version.clone().map(version)))
    }

    /// The base of an engine, and the directory of its worker if that is another build's.
    fn base(&self, engine: &Engine, places: &Places) -> Result<(Engine, Option<&Path>)> {
        match self {
            Base::Workers(directory) => Ok((engine.clone(), Some(directory))),
            Base::Version { version, .. } => {
                Ok((places.engine(&format!("{}@{version}", engine.base()))?, None))
            }
        }
    }
}

pub(super) fn check(args: &CheckArgs, base: &Base, places: &Places) -> Result<(Document, Report)> {
    let mut asked = args.request.request();
    if let Base::Version { head: Some(head), .. } = base {
        asked.frameworks = vec![head.clone()];
    }
    if let Some(reason) = pairing::too_few_rounds(&asked) {
        return Err(Failure::usage(render::regression::undecidable(&reason, "")));
    }
    let engines = engines_of(&asked, &places.on(&asked.device))?;
    let base = match base {
        Base::Workers(directory) => Base::Workers(directory.canonicalize().map_err(|error| {
            Failure::usage(format!(
                "cannot find the workers of --base-workers {}: {error}",
                directory.display()
            ))
        })?),
        Base::Version { version, head } => Base::Version { version: version.clone(), head: head.clone() },
    };
    let bases = engines.iter().map(|engine| base.base(engine, places)).collect::<Result<Vec<_>>>()?;
    let all: Vec<Engine> = bases.iter().map(|(engine, _)| engine).chain(&engines).cloned().collect();
    provision::workers(places, &all, args.here.quiet)?;
    asked.study.varied = vec![VARIED.to_owned()];
    asked.study.arms = bases.iter().zip(&engines).flat_map(|(base, engine)| arms(base, engine)).collect();
    handshake(&bases, &asked, places)?;
    let results = results_dir(args.results_dir.as_ref(), places);
    let destination = Destination::in_one(&results, args.here.quiet);
    let (report, unsaved) = compare::measure(&asked, places, &destination)?;
    compare::ended(&report, unsaved)?;
    Ok((document(args, &base, &report), report))
}

/// Sides of the comparison, the base first: the base is known to be good, so it gives the reference.
fn arms((base, workers): &(Engine, Option<&Path>), engine: &Engine) -> [Arm; 2] {
    let arm = |label: String, engine: &Engine, workers: Option<&Path>| Arm {
        label,
        engine: engine.name.clone(),
        workers: workers.map(Path::to_path_buf),
        ..Arm::default()
    };
    let name = engine.base();
    [arm(format!("{name}{BASE}"), base, *workers), arm(name.to_owned(), engine, None)]
}

/// Refuses a base that this program cannot run, before anything is measured.
fn handshake(bases: &[(Engine, Option<&Path>)], asked: &Request, places: &Places) -> Result<()> {
    let arms = asked.study.arms.iter().filter(|arm| arm.label.ends_with(BASE));
    for (arm, (engine, workers)) in arms.zip(bases) {
        if workers.is_some() && engine.worker.starts_with("{root}/") {
            return Err(Failure::usage(format!(
                "{} is a script of this program, which no build makes: leave it out of an interleaved check",
                engine.name
            )));
        }
        let base = Engine { settings: EngineSettings::default(), ..arm.built(engine.clone()) };
        let contender = Contender::new(arm.label.clone(), base, asked, available_threads());
        let worker = worker::worker(&contender, None, places, (asked.timeout_s, asked.huge_pages));
        worker.hello().map_err(|reason| match workers {
            Some(_) => Failure::usage(format!(
                "photofinish cannot run the base's worker of {}: {reason}; to compare builds with different protocols, \
                 measure each and use --baseline",
                engine.name
            )),
            None => Failure::usage(format!("{}: {reason}", engine.name)),
        })?;
    }
    Ok(())
}

fn document(args: &CheckArgs, base: &Base, report: &Report) -> Document {
    let records = records::records(report, None);
    let (baseline, current): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.framework.ends_with(BASE));
    let kind = match base {
        Base::Workers(_) => Kind::Interleaved,
        Base::Version { .. } => Kind::Versions,
    };
    let sides = sides(base, &baseline, &current, report);
    regression::interleaved((kind, sides), (&baseline, &current), report, &args.asked)
}

fn sides(base: &Base, baseline: &[Record], current: &[Record], report: &Report) -> (Side, Side) {
    match base {
        Base::Workers(directory) => {
            let (recorded, is_modified) = places::origin(directory);
            // `cargo xtask gate` notes the commit of kept workers next to them.
            let kept = untrusted::file::read_text(&directory.join("commit.txt"), untrusted::file::CONFIG)
                .ok()
                .map(|text| text.trim().to_owned());
            let git_modified = if kept.is_some() { Some(false) } else { is_modified };
            let git_commit = kept.or(recorded);
            let side = Side::new(&directory.display().to_string(), baseline);
            (Side { git_commit, git_modified, ..side }, Side::new("this build", current))
        }
        Base::Version { version, .. } => {
            // Photofinish is the same on both sides.
            let side = |source: &str, records: &[Record]| Side {
                git_commit: None,
                git_modified: None,
                ..Side::new(source, records)
            };
            let engines = report.plan.contenders.iter().map(|contender| &contender.engine);
            let current_version =
                engines.filter_map(|engine| engine.version.as_deref()).find(|other| other != version);
            (side(version, baseline), side(current_version.unwrap_or("the pinned version"), current))
        }
    }
}
