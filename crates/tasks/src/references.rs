//! `cargo xtask setup --references`: builds the references of crate `setup` that are compiled here
//! (docs/reference/frameworks.md).

use anyhow::Result;
use configs::Engine;
pub(crate) use setup::Reference;
use setup::tooling::Reporter;
use setup::{References, Target};

use crate::cargo::build;
use crate::workspace::Workspace;

pub(crate) fn all(workspace: &Workspace, target: Target) -> References {
    References {
        cache: workspace.cache.clone(),
        sources: workspace.root.join("references/python"),
        binaries: workspace.binaries.clone(),
        builds_here: false,
        command: "cargo xtask setup",
        target,
    }
}

/// The reference of an engine that cargo does not build.
pub(crate) fn behind(engine: &Engine) -> Option<Reference> {
    let in_python = engine.reference && engine.worker.starts_with("{root}/");
    Reference::all().find(|reference| in_python && reference.to_string() == engine.framework)
}

pub(crate) fn set_up(
    workspace: &Workspace,
    target: Target,
    named: &[Reference],
    reporter: Reporter,
) -> Result<()> {
    let provision = workspace.provision(reporter)?;
    all(workspace, target).set_up(named, reporter, |reference| {
        reference.piece().map(|piece| provision.provide(piece)).transpose()?;
        match reference.package() {
            Some(name) => build(workspace, &[&name], None, reporter),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::build::Engines;

    use super::*;

    #[test]
    fn every_reference_of_configs_can_be_set_up() {
        let workspace = Workspace::locate().unwrap().shipped();
        let engines = Engines::read(&workspace).unwrap();
        let references: Vec<_> = engines.all().iter().filter(|engine| engine.reference).collect();
        assert!(references.len() >= Reference::all().count());
        for engine in references {
            let known = Reference::all().find(|reference| reference.to_string() == engine.framework);
            let known = known.unwrap_or_else(|| panic!("{} is not known", engine.name));
            let cargo_builds_it = known.worker().as_ref() == Some(&engine.worker);
            assert_eq!(behind(engine).is_none(), cargo_builds_it, "{}", engine.name);
        }
    }
}
