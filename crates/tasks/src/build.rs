//! `cargo xtask build`: the driver, `prepare` and the workers, in one invocation of cargo while their libraries download.
//!
//! One invocation gives the same as several: every crate that programs share declares the same features for
//! all of them (crates `features` and `features-large`; invariant 10 of docs/explanation/architecture.md,
//! which `features.rs` tests).

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Error, Result, ensure};
use configs::{ConfigError, Engine, Model};
use setup::tooling::process;
use setup::tooling::{self, BadInput, Reporter};
use setup::{DERIVE, Piece, Provision, Reference, Target};

use crate::cargo::{HUB, build, build_what_can_be};
use crate::references;
use crate::workspace::Workspace;

/// The programs of every comparison besides workers.
pub(crate) const PROGRAMS: [&str; 2] = ["driver", "prepare"];

/// Needs no native library, and most crates depend on it: built while libtorch downloads.
const WITHOUT_LIBRARIES: &str = "protocol";

/// The programs and libraries of one build.
#[derive(Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) programs: Vec<&'a str>,
    pub(crate) engines: Vec<&'a Engine>,
    /// Pieces that no program is built with, such as a model.
    pub(crate) pieces: Vec<Piece>,
    /// Where the workers will run; those for a GPU are built elsewhere (`cuda.rs`).
    pub(crate) target: Target,
}

pub(crate) fn run(
    workspace: &Workspace,
    frameworks: &[String],
    hub: bool,
    reporter: Reporter,
) -> Result<ExitCode> {
    let engines = Engines::read(workspace)?;
    let programs = PROGRAMS.into_iter().chain(["engine-mock"]).chain(hub.then_some(HUB)).collect();
    let wanted = Wanted { programs, engines: engines.select(frameworks)?, ..Wanted::default() };
    together(workspace, &wanted, reporter)?;
    Ok(ExitCode::SUCCESS)
}

/// Provides the pieces and builds programs and workers. A worker that cannot be built is reported and stops no other; an
/// error if none of several could be, or if a program could not.
pub(crate) fn together(workspace: &Workspace, wanted: &Wanted, reporter: Reporter) -> Result<()> {
    let provision = workspace.provision(reporter.without_bars())?;
    let mut pieces = BTreeSet::new();
    for engine in &wanted.engines {
        for piece in Piece::named(&engine.native)? {
            // The user named a wrong library: nothing is missing, and the user must correct it.
            provision.check_given(piece)?;
            pieces.insert(piece);
        }
    }
    pieces.extend(&wanted.pieces);
    std::thread::scope(|scope| {
        // In the order of `Piece`: libtorch first, for which cargo waits.
        let (sender, provided) = std::sync::mpsc::channel();
        scope.spawn({
            let (provision, pieces) = (&provision, &pieces);
            move || pieces.iter().all(|&piece| sender.send((piece, provision.provide(piece))).is_ok())
        });
        let mut no_libtorch = None;
        if pieces.contains(&Piece::Libtorch) {
            // An older commit has no such package.
            if !workspace.is_apart() && !matches!(provision.find(Piece::Libtorch), Ok(Some(_))) {
                build(workspace, &[WITHOUT_LIBRARIES], None, reporter)?;
            }
            no_libtorch = provided.recv().ok().and_then(|(_, result)| result.err());
        }
        let outcome = workers(workspace, wanted, &provision, no_libtorch, reporter);
        let results: Vec<_> = provided.iter().collect();
        tooling::check()?;
        let mut failures = outcome?;
        for (piece, result) in results {
            let Err(error) = result else { continue };
            let is_needed_by_all = wanted.engines.iter().all(|engine| needs(engine, piece));
            if wanted.pieces.contains(&piece) || is_needed_by_all {
                return Err(error);
            }
            failures.push(error);
        }
        for failure in failures {
            reporter.warn(&format!("{failure:#}; the comparison goes on without it"));
        }
        Ok(())
    })
}

/// Builds the programs and the workers; the workers that could not be built, if others could.
fn workers(
    workspace: &Workspace,
    wanted: &Wanted,
    provision: &Provision,
    mut no_libtorch: Option<Error>,
    reporter: Reporter,
) -> Result<Vec<Error>> {
    let has_libtorch = no_libtorch.is_none();
    let mut failures = Vec::new();
    let mut packages: Vec<&str> = Vec::new();
    let mut others = 0;
    let mut checked = BTreeSet::new();
    for engine in &wanted.engines {
        if !checked.insert((&engine.worker, &engine.framework)) {
            // Variants share a worker. References in Python also share a launcher, but not the program it
            // starts.
            continue;
        }
        match check(workspace, engine, wanted.target, has_libtorch) {
            Ok(true) => packages.push(&engine.worker),
            Ok(false) => others += 1,
            Err(error) if needs(engine, Piece::Libtorch) => {
                // Why libtorch could not be provided says more than that a worker needs it.
                failures.push(no_libtorch.take().unwrap_or(error));
            }
            Err(error) => failures.push(error),
        }
    }
    let needs_libtorch = wanted.engines.iter().any(|engine| needs(engine, Piece::Libtorch));
    let libtorch = needs_libtorch.then(|| provision.place(Piece::Libtorch)).transpose()?;
    let all: Vec<&str> = wanted.programs.iter().chain(&packages).copied().collect();
    let unbuilt = build_what_can_be(workspace, &all, libtorch.as_deref(), reporter)?;
    for (name, error) in unbuilt {
        if wanted.programs.contains(&name) {
            return Err(error);
        }
        packages.retain(|package| *package != name);
        failures.push(error);
    }
    if packages.is_empty() && others == 0 && !failures.is_empty() {
        let first = failures.remove(0);
        for failure in failures {
            reporter.warn(&format!("{failure:#}"));
        }
        return Err(first);
    }
    Ok(failures)
}

fn needs(engine: &Engine, piece: Piece) -> bool {
    engine.native.contains(&piece.to_string())
}

/// Whether cargo builds this engine's worker; an error if something is missing that it needs.
fn check(workspace: &Workspace, engine: &Engine, target: Target, has_libtorch: bool) -> Result<bool> {
    if let Some(reference) = references::behind(engine) {
        references::all(workspace, target).check(reference)?;
        return Ok(false);
    }
    if engine.worker.contains('/') {
        // A program of the user's own.
        return Ok(false);
    }
    if needs(engine, Piece::Libtorch) {
        ensure!(has_libtorch, "{} needs libtorch", engine.worker);
        ensure!(
            process::cxx_compiler().is_some(),
            "{} needs a C++ compiler: install one (on Debian and Ubuntu: apt-get install g++) or set CXX",
            engine.worker
        );
    }
    Ok(true)
}

/// The programs of an installation besides `PROGRAMS` and the workers of these engines.
pub(crate) fn tools(engines: &[&Engine], hub: bool) -> Vec<&'static str> {
    let has_llamacpp = engines.iter().any(|engine| engine.framework == Reference::Llamacpp.to_string());
    has_llamacpp.then_some(DERIVE).into_iter().chain(hub.then_some(HUB)).collect()
}

// The files that define engines and models: configs/engines/*.toml and configs/models/*.toml.

pub(crate) struct Engines(Vec<Engine>);

impl Engines {
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let read = if workspace.is_apart() { configs::engines_of_another_version } else { configs::engines };
        let engines = read(&workspace.layers()).map_err(bad_input)?;
        for engine in &engines {
            Piece::named(&engine.native).with_context(|| format!("configs/engines/{}.toml", engine.name))?;
        }
        Ok(Self(engines))
    }

    /// In the order of the names; the three frameworks that this project tunes where there are none.
    pub(crate) fn select(&self, names: &[String]) -> Result<Vec<&Engine>> {
        let selected = configs::selection::selected(&self.0, names).map_err(bad_input)?;
        let find = |name: &str| self.0.iter().find(|engine| engine.name == name);
        Ok(selected.iter().filter_map(|engine| find(engine.base())).collect())
    }

    /// Those of an installation: without names also a hybrid, whose worker is that of every hybrid.
    pub(crate) fn installed(&self, names: &[String]) -> Result<Vec<&Engine>> {
        let hybrid = self.0.iter().find(|engine| names.is_empty() && engine.framework == configs::HYBRID);
        Ok(self.select(names)?.into_iter().chain(hybrid).collect())
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Engine] {
        &self.0
    }
}

/// The model of this name in configs/models, if there is one.
fn model(workspace: &Workspace, name: &str) -> Result<Option<Model>> {
    let is_known = configs::models(&workspace.layers()).map_err(bad_input)?.iter().any(|known| known == name);
    let model = is_known.then(|| configs::model(&workspace.layers(), name).map_err(bad_input));
    Ok(model.transpose()?)
}

/// Pieces that `--model` needs. A path or a source with a scheme (`hf:owner/name`) needs none, and the driver
/// checks whether it exists.
pub(crate) fn pieces_of_model(workspace: &Workspace, name: &str) -> Result<Vec<Piece>> {
    if let Some(model) = model(workspace, name)? {
        return Piece::named(&model.native);
    }
    let is_bare_word = !name.contains(['/', '\\', ':', '.']);
    // Said here rather than after minutes of building.
    ensure!(
        !is_bare_word || Path::new(name).exists(),
        BadInput(format!(
            "unknown model {name:?}; configs/models has: {}; a directory, a .gguf file or hf:owner/name also \
             names one",
            configs::models(&workspace.layers()).map_err(bad_input)?.join(", ")
        ))
    );
    Ok(Vec::new())
}

/// Whether `--model` names a model that is downloaded from Hugging Face's hub.
pub(crate) fn is_of_hub(workspace: &Workspace, name: &str) -> Result<bool> {
    let source = model(workspace, name)?.map_or(name.to_owned(), |model| model.source);
    Ok(source.starts_with("hf:"))
}

fn bad_input(error: ConfigError) -> BadInput {
    BadInput(error.to_string())
}

#[cfg(test)]
mod tests {
    use setup::tooling::is_bad_input;

    use super::*;

    fn workspace() -> Workspace {
        Workspace::locate().unwrap().shipped()
    }

    #[test]
    fn engines_are_selected_by_file_name() {
        let engines = Engines::read(&workspace()).unwrap();
        let selected = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            engines.select(&names)
        };
        let names = |asked: &[&str]| -> Vec<&str> {
            selected(asked).unwrap().into_iter().map(|engine| engine.name.as_str()).collect()
        };
        assert_eq!(names(&["tch-base", "candle"]), ["tch-base", "candle"]);
        let tch = selected(&["tch-base"]).unwrap()[0];
        assert_eq!((tch.framework.as_str(), needs(tch, Piece::Libtorch)), ("tch", true));
        // References are built where they are named.
        assert_eq!(names(&[]), ["candle", "tch", "ort"]);
        let workers = |names: &[String]| -> Vec<&str> {
            let installed = engines.installed(names).unwrap();
            installed.into_iter().map(|engine| engine.worker.as_str()).collect()
        };
        assert_eq!(workers(&[]), ["engine-candle", "engine-tch", "engine-ort", "engine-hybrid"]);
        assert_eq!(workers(&["candle".into()]), ["engine-candle"]);
        let error = selected(&["xyz"]).unwrap_err();
        let known = ["xyz", "photofinish list frameworks"];
        assert!(is_bad_input(&error) && known.iter().all(|part| error.to_string().contains(part)), "{error}");
    }

    #[test]
    fn a_model_by_name_asks_for_its_piece_and_a_path_for_none() {
        let workspace = workspace();
        assert_eq!(pieces_of_model(&workspace, "smollm2-135m").unwrap(), [Piece::Model]);
        assert_eq!(pieces_of_model(&workspace, "hf:owner/name").unwrap(), []);
        assert_eq!(pieces_of_model(&workspace, "./no/such.gguf").unwrap(), []);
        let error = pieces_of_model(&workspace, "smollm3").unwrap_err();
        assert!(is_bad_input(&error) && error.to_string().contains("smollm2-135m"), "{error}");
    }
}
