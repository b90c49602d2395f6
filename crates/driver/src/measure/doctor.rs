//! `photofinish doctor`: for each framework whether it can run here, with which library from where, and
//! otherwise the remedy. Nothing is downloaded or built.

use std::collections::BTreeMap;

use comparison::plan::workers::gigabytes;
use comparison::plan::{Contender, HugePages, Request, Result};
use configs::Engine;
use setup::tooling::process::{self, command, output_of};
use setup::{Piece, Provision, Reference, Target};

use crate::measure::machine;
use crate::measure::places;
use crate::measure::places::Places;
use crate::measure::provision::{failure, provision, references};
use crate::measure::worker;

#[derive(Debug, Default)]
pub struct Examined {
    /// Frameworks that can run here, and those that cannot.
    able: Vec<String>,
    unable: Vec<String>,
    /// Whether an installed file has changed, if that was asked.
    damaged: bool,
    lines: Vec<String>,
}

impl Examined {
    /// Whether every framework can run, and no file is damaged.
    pub fn can_all_run(&self) -> bool {
        self.unable.is_empty() && !self.damaged
    }

    /// The answer, then a line for each fact.
    pub fn text(&self) -> String {
        let answer = match (self.able.join(", "), self.unable.join(", ")) {
            (able, unable) if unable.is_empty() => format!("{able} can run here"),
            (able, unable) if able.is_empty() => {
                format!("no framework can run here: {unable}; remedies below")
            }
            (able, unable) => format!("{able} can run here; {unable} cannot: remedies below"),
        };
        let damage = if self.damaged { "some installed files are damaged; remedies below\n" } else { "" };
        format!("{answer}\n{damage}\n{}\n", self.lines.join("\n"))
    }
}

/// Examines every framework of configs/engines, the libraries, the references and, in a checkout, the toolchain. `deep` also
/// hashes every installed file.
pub fn examine(places: &Places, deep: bool) -> Result<Examined> {
    let provision = provision(places, true)?;
    let engines = configs::engines(&places.configs)?;
    let mut frameworks: BTreeMap<&str, Vec<&Engine>> = BTreeMap::new();
    for engine in engines.iter().filter(|engine| !engine.reference) {
        frameworks.entry(&engine.framework).or_default().push(engine);
    }
    let mut found = Examined::default();
    found.lines.push(processor());
    for (framework, mut variants) in frameworks {
        // The engine with the framework's own name comes before its variants.
        variants.sort_by_key(|engine| engine.name != framework);
        found.framework(places, &provision, framework, &variants)?;
    }
    found.lines.push("references:".to_owned());
    let references = references(places, Target::Cpu);
    for reference in Reference::all() {
        found.lines.push(match references.check(reference) {
            Ok(()) => format!("  {reference}: set up"),
            Err(error) => format!("  {error}"),
        });
    }
    found.lines.push("limits here:".to_owned());
    found.lines.extend(limits(places).into_iter().map(|line| format!("  {line}")));
    found.lines.push(format!("cache: {}", places.cache.display()));
    found.lines.push(format!("  {}", state_of(places, &provision, Piece::Model)));
    if places.checkout.is_some() {
        found.toolchain();
    }
    if deep {
        found.files(places, &provision)?;
    }
    Ok(found)
}

/// Which processor it is, and the extensions that kernels of products may use. The line "CPU" of a framework lists those
/// that it does use.
fn processor() -> String {
    let extensions = places::cpu_extensions();
    let listed =
        if extensions.is_empty() { "no extensions reported".to_owned() } else { extensions.join(", ") };
    let family = places::cpu_family().map_or_else(String::new, |family| format!("{family}; "));
    let shared = match places::threads_per_core() {
        Some(threads) if threads > 1 => format!("; {threads} threads share a core"),
        _ => String::new(),
    };
    format!("processor: {family}{listed}{shared}")
}

/// What a container or a service manager takes from this process, and what that changes; one line where nothing is.
fn limits(places: &Places) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(machine), Some(allowed)) = (machine::online(), machine::allowed())
        && allowed.len() < machine
    {
        let allowed = allowed.len();
        lines.push(format!(
            "CPUs: {allowed} of {machine} (a cpuset, or taskset): workers have one thread for each unless --threads says \
             less, and other processes may run on these CPUs, too"
        ));
    }
    if let Some(quota) = machine::quota() {
        lines.push(format!(
            "CPU time: a control group allows {quota:.1} CPUs and stops processes that use more for a part of each tenth \
             of a second, so that steps last longer at random; R12 strikes comparisons with more threads: give whole CPUs \
             (a cpuset) in place of a quota"
        ));
    }
    if let Some((left, machine::readings::BY_GROUP)) = machine::readings::main_memory() {
        lines.push(format!(
            "memory: a control group leaves {}: a model that needs more is refused before it is loaded",
            gigabytes(left.into())
        ));
    }
    if machine::filters_system_calls() {
        lines.push(
            "system calls: a seccomp filter is on: `photofinish profile` needs perf_event_open, which it may forbid; \
             comparisons need nothing that is forbidden by default"
                .to_owned(),
        );
    }
    let nearest = places.cache.ancestors().find(|directory| directory.exists());
    if let Some(directory) = nearest.filter(|directory| tempfile::tempfile_in(directory).is_err()) {
        lines.push(format!(
            "cache: {} cannot be written to: set XDG_CACHE_HOME to a directory that can",
            directory.display()
        ));
    }
    if lines.is_empty() {
        lines.push("none was found: all CPUs, no quota, no filter of system calls".to_owned());
    }
    lines
}

impl Examined {
    fn framework(
        &mut self,
        places: &Places,
        provision: &Provision,
        framework: &str,
        variants: &[&Engine],
    ) -> Result<()> {
        let [engine, others @ ..] = variants else { return Ok(()) };
        let pieces = Piece::named(&engine.native).map_err(|error| failure(&error))?;
        let contender = Contender::new(engine.name.clone(), (*engine).clone(), &Request::default(), 1);
        let worker = worker::worker(&contender, None, places, (TIMEOUT_S, HugePages::On));
        let hello = worker.hello().and_then(|hello| match hello.framework.as_str() == engine.framework {
            true => Ok(hello),
            false => Err(format!("{} says that it is {}", engine.worker, hello.framework)),
        });
        match &hello {
            Ok(hello) => {
                self.able.push(framework.to_owned());
                self.lines.push(format!("{framework}: can run"));
                self.lines.push(format!("  library: {}, through {}", hello.library, hello.binding));
                let path = hello.library_path.iter().map(|path| format!("  loaded from: {path}"));
                self.lines.extend(path);
                self.lines
                    .extend(hello.cpu_capability.iter().map(|capability| format!("  CPU: {capability}")));
                let build = &hello.build;
                let flags = build.rustflags.as_deref().unwrap_or_default();
                self.lines.extend(match (&build.rustc, &build.toolchain) {
                    (Some(rustc), _) => Some(format!("  built by: {rustc} with {flags:?}")),
                    (None, Some(toolchain)) => Some(format!("  run by: {toolchain}")),
                    (None, None) => None,
                });
            }
            Err(reason) => {
                self.unable.push(framework.to_owned());
                self.lines.push(format!("{framework}: cannot run: {reason}"));
            }
        }
        self.lines.extend(pieces.iter().map(|&piece| format!("  {}", state_of(places, provision, piece))));
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(|engine| engine.name.as_str()).collect();
            self.lines.push(format!("  variants: {}", names.join(", ")));
        }
        if hello.is_ok() {
            return Ok(());
        }
        if places.checkout.is_some() && pieces.contains(&Piece::Libtorch) && process::cxx_compiler().is_none()
        {
            self.lines.push(
                "  first: install a C++ compiler (on Debian and Ubuntu: apt-get install g++) or set CXX"
                    .into(),
            );
        }
        // The line of an unsuitable library of the user's own already has the reason.
        if pieces.iter().all(|&piece| provision.find(piece).is_ok()) {
            self.lines.push(format!("  to fix it: {}", places.provides(engine)));
        }
        Ok(())
    }

    /// The result of comparing hashes of installed files.
    fn files(&mut self, places: &Places, provision: &Provision) -> Result<()> {
        self.lines.push("files of the cache, by sha256:".to_owned());
        for piece in Piece::ALL {
            let damage = provision.damage(piece).map_err(|error| failure(&error))?;
            if let Some(what) = damage {
                self.damaged = true;
                self.lines.push(format!("  {piece}: {what}; {} --only {piece}", places.setup_command()));
            } else if matches!(provision.find(piece), Ok(Some(found)) if !found.given) {
                self.lines.push(format!("  {piece}: as installed"));
            }
        }
        Ok(())
    }

    fn toolchain(&mut self) {
        let or_missing = |found: Option<String>, remedy: &str| match found {
            Some(text) => text.lines().next().unwrap_or_default().to_owned(),
            None => format!("not found; {remedy}"),
        };
        let version = |program: &str, words: &[&str]| output_of(command(program).args(words)).ok();
        let cargo = version("cargo", &["--version"]);
        let compiler = process::cxx_compiler().and_then(|name| version(&name, &["--version"]));
        let pip = output_of(process::python().args(["-m", "pip", "--version"])).ok();
        self.lines.extend([
            "toolchain:".to_owned(),
            format!("  cargo: {}", or_missing(cargo, "install Rust")),
            format!(
                "  C++ compiler: {}",
                or_missing(compiler, "install g++ or clang, or set CXX; tch needs it")
            ),
            format!("  pip: {}", or_missing(pip, "install python3-pip; set-up downloads with it")),
        ]);
    }
}

/// Longest wait for a worker's hello.
const TIMEOUT_S: u64 = 60;

fn state_of(places: &Places, provision: &Provision, piece: Piece) -> String {
    match provision.find(piece) {
        Ok(Some(found)) => found.to_string(),
        Err(error) => error.to_string(),
        Ok(None) => {
            let version = provision.pinned_version(piece);
            format!("{piece} {version}: not set up; {} --only {piece}", places.setup_command())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_first_and_names_what_cannot_run() {
        let mut found = Examined { able: vec!["candle".into(), "ort".into()], ..Examined::default() };
        assert!(found.text().starts_with("candle, ort can run here\n") && found.can_all_run());
        found.unable.push("tch".into());
        assert!(found.text().starts_with("candle, ort can run here; tch cannot: remedies below\n"));
        assert!(!found.can_all_run());
    }
}
