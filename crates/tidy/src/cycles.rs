//! Cycles of modules within a crate.
//!
//! A module may use modules within it, and an inner module the outer one. Between two modules of which
//! neither contains the other, the use is one of the two neighbours below their nearest common parent: `a::x`
//! using `b::y` is `a` using `b`. Such uses may not form a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::modules::Module;
use crate::names::Names;
use crate::{Finding, relative};

/// A module's names from the crate's root on.
type ModulePath = Vec<String>;

/// Modules that use each other, directly or by others, and the uses between them.
pub(crate) struct Cycle {
    pub(crate) modules: Vec<String>,
    /// From, to, and the file with the use.
    pub(crate) uses: Vec<(String, String, PathBuf)>,
}

pub(crate) const RULE: &str = "modules of a crate form no cycle";

impl Cycle {
    /// Which module uses which, and where.
    pub(crate) fn uses(&self, root: &Path) -> String {
        let uses =
            self.uses.iter().map(|(from, to, file)| format!("{from} uses {to} ({})", relative(root, file)));
        uses.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn finding(&self, root: &Path, crate_name: &str) -> Finding {
        Finding {
            rule: RULE,
            place: crate_name.to_owned(),
            found: format!("{crate_name}: {}", self.uses(root)),
            remedy: "move what both need into a third module, or into the one that is used",
        }
    }
}

pub(crate) fn cycles(modules: &[Module]) -> Vec<Cycle> {
    let uses = uses(modules);
    let mut cycles: Vec<Cycle> = Vec::new();
    let mut seen: BTreeSet<&ModulePath> = BTreeSet::new();
    for start in uses.keys().map(|(from, _)| from) {
        let together: BTreeSet<&ModulePath> = reached(&uses, start)
            .into_iter()
            .filter(|module| reached(&uses, module).contains(start))
            .collect();
        if together.is_empty() || !seen.insert(start) {
            continue;
        }
        seen.extend(&together);
        let inside = uses.iter().filter(|((from, to), _)| together.contains(from) && together.contains(to));
        cycles.push(Cycle {
            modules: together.iter().map(|path| path.join("::")).collect(),
            uses: inside.map(|((from, to), file)| (from.join("::"), to.join("::"), file.clone())).collect(),
        });
    }
    cycles
}

/// Modules at the end of a chain of uses, one or more.
fn reached<'a>(
    uses: &'a BTreeMap<(ModulePath, ModulePath), PathBuf>,
    start: &ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![start];
    while let Some(at) = todo.pop() {
        for (_, to) in uses.keys().filter(|(from, _)| from == at) {
            if reached.insert(to) {
                todo.push(to);
            }
        }
    }
    reached
}

/// Uses between neighbours, each with one file that has it.
fn uses(modules: &[Module]) -> BTreeMap<(ModulePath, ModulePath), PathBuf> {
    let names = modules.iter().map(|module| (module.path.clone(), Names::read(&module.items)));
    let scopes = Scopes(names.collect());
    let mut uses = BTreeMap::new();
    for module in modules {
        // A lower-case name alone may well be a variable; imported names were seen in `use`.
        let is_name = |path: &&ModulePath| {
            path.len() > 1 || path.iter().all(|name| name.starts_with(char::is_uppercase))
        };
        for path in scopes.0[&module.path].paths.iter().filter(is_name) {
            let Some(to) = scopes.resolve(&module.path, path, 8) else { continue };
            let common = module.path.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // If one contains the other, one of the paths ends here.
            if let (Some(_), Some(_)) = (module.path.get(common), to.get(common)) {
                let neighbours = (module.path[..=common].to_vec(), to[..=common].to_vec());
                uses.entry(neighbours).or_insert_with(|| module.file.clone());
            }
        }
    }
    uses
}

struct Scopes(BTreeMap<ModulePath, Names>);

impl Scopes {
    /// The module that a path written in `from` leads into; `None` for a path of another crate. `depth`
    /// bounds the number of imports that are followed for a name.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let mut at = from.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            _ => return self.find(&at, rest, depth),
        }
        self.find(&at, rest, depth).or(Some(at))
    }

    /// Follows `names` down from a module; `None` unless the first is known there.
    fn find(&self, module: &[String], names: &[String], depth: usize) -> Option<ModulePath> {
        let (name, rest) = names.split_first()?;
        let here = self.0.get(module)?;
        let child = [module, std::slice::from_ref(name)].concat();
        if self.0.contains_key(&child) {
            return self.find(&child, rest, depth).or(Some(child));
        }
        if here.defined.contains(name) {
            return Some(module.to_vec());
        }
        let depth = depth.checked_sub(1)?;
        if let Some(target) = here.imports.get(name) {
            // A name that this module imports from another crate counts as this module's.
            let of_another = || Some(module.to_vec());
            return self.resolve(module, &[target, rest].concat(), depth).or_else(of_another);
        }
        here.globs.iter().find_map(|glob| {
            let target = self.resolve(module, glob, depth)?;
            self.find(&target, names, depth)
        })
    }
}

#[cfg(test)]
mod tests;
